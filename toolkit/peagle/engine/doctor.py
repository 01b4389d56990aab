"""What this machine has and lacks for the toolkit, and the fix for everything that is missing."""

from __future__ import annotations

import os
import shutil
import sys
from configparser import ParsingError, RawConfigParser
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from peagle.engine.installed import find_engine, this_machine
from peagle.errors import EngineMissing, PeagleError
from peagle.images import Docker
from peagle.images.docker import docker_info
from peagle.store import home

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
    return (
        _python(), _machine(), _disk(), _engine(vllm), _sandbox(), _credentials(), *_docker()
    )  # fmt: skip


def _python() -> MachineCheck:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return MachineCheck("Python", version, fine, "demo", "use Python 3.11, 3.12 or 3.13")


def _machine() -> MachineCheck:
    machine = this_machine()
    gib = machine.memory_bytes / 2**30
    found = f"{gib:.0f} GiB, {machine.cores} cores, {machine.system} {machine.architecture}"
    return MachineCheck(
        "Machine", found, gib >= 4, "demo", "use a machine with at least 4 GiB of memory"
    )


def _disk() -> MachineCheck:
    folder = next(path for path in (home(), *home().parents) if path.is_dir())
    gigabytes = shutil.disk_usage(folder).free / 1e9
    writable = os.access(folder, os.W_OK)
    found = f"{gigabytes:.0f} GB free" if writable else "not writable"
    fix = f"set PEAGLE_HOME to a folder on a disk with {ENGINE_GB} GB"
    return MachineCheck(
        "Home", f"{home()}, {found}", writable and gigabytes >= ENGINE_GB, "demo", fix
    )


def _engine(vllm: str) -> MachineCheck:
    try:
        found = f"vLLM {vllm} in {find_engine(vllm).python}"
    except EngineMissing as missing:
        return MachineCheck(
            "Engine", missing.message, False, "demo", missing.fix, tuple(missing.command)
        )
    return MachineCheck("Engine", found, True, "demo")


def _sandbox() -> MachineCheck:
    fine = find_spec("moto") is not None
    found = "moto is installed" if fine else "moto is not installed"
    return MachineCheck(
        "Sandbox", found, fine, "demo", "install it",
        ("pip", "install", "peagle-toolkit[sandbox]"),
    )  # fmt: skip


def _credentials() -> MachineCheck:
    """Only the source of credentials: `peagle deploy` checks whether AWS accepts them."""
    profile = os.environ.get("AWS_PROFILE")
    if "AWS_ACCESS_KEY_ID" in os.environ:
        found, fine = "from the environment", True
    elif any(name.startswith("AWS_CONTAINER_CREDENTIALS_") for name in os.environ):
        found, fine = "from the container's role", True
    elif profile:
        fine = profile in _profiles()
        found = f"from the profile {profile}" if fine else f"there is no profile {profile}"
    else:
        fine = "default" in _profiles()
        found = "from the default profile" if fine else "none"
    return MachineCheck(
        "AWS credentials", found, fine, "deploying to AWS",
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
        file = Path(os.environ.get(variable) or Path.home() / ".aws" / default).expanduser()
        parser = RawConfigParser(strict=False)
        with suppress(ParsingError):
            parser.read(file, encoding="utf-8")
        names |= {section.removeprefix("profile ").strip() for section in parser.sections()}
    return names
