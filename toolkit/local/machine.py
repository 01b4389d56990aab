"""What this machine has: memory, cores, system."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Machine:
    """``memory_bytes`` is what this process may use: a container's limit counts."""

    memory_bytes: int
    cores: int
    system: str
    architecture: str


def this_machine() -> Machine:
    """The machine that this runs on."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for path in _CGROUP_LIMITS if (limit := _limit(path)) is not None]
    return Machine(min([physical, *limits]), _cores(), platform.system(), platform.machine())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _limit(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
