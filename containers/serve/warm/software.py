"""Which software runs: every installed distribution with its version."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable

_ENDING = ".dist-info"
_TORCH_FOR_CPU = re.compile(r"torch-[^-]*\+cpu", re.IGNORECASE)


def distributions(places: Iterable[str] | None = None) -> list[str]:
    """``name-version`` of all distributions in ``places`` (``sys.path``), sorted."""
    found = set()
    for place in sys.path if places is None else places:
        try:
            with os.scandir(place or ".") as entries:
                names = [entry.name for entry in entries]
        except OSError:
            continue
        found |= {name[: -len(_ENDING)] for name in names if name.endswith(_ENDING)}
    return sorted(found)


def software_digest(installed: Iterable[str]) -> str:
    """SHA-256 over these distributions, Python's version and the kind of machine."""
    lines = [*sorted(installed), platform.python_version(), os.uname().machine]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_for_cpu(installed: Iterable[str]) -> bool:
    """Whether torch was built for the CPU only."""
    return any(_TORCH_FOR_CPU.fullmatch(one) for one in installed)
