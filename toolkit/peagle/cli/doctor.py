"""``peagle doctor``: what this machine has, what it lacks, and the command that mends it."""

from __future__ import annotations

import os
import shutil
import sys
from configparser import ParsingError, RawConfigParser
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from peagle.catalog import load_catalog
from peagle.cli.context import PeagleCommand
from peagle.cli.output.columns import WIDE, folded, room
from peagle.cli.output.console import json_option, print_json
from peagle.engine.installed import find_engine, this_machine
from peagle.errors import EngineMissing, PeagleError
from peagle.images import Docker
from peagle.images.docker import abilities
from peagle.store import home

ENGINE_GB = 4
"""What the CPU engine takes on disk, with room to unpack."""


@dataclass(frozen=True)
class Check:
    """``needed_for`` says what does not work without it; ``fix`` is empty when all is well."""

    what: str
    found: str
    fine: bool
    needed_for: str
    fix: str = ""


@click.command(cls=PeagleCommand, epilog="Example: peagle doctor --json")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check what this machine has and lacks.

    Exit code 3 when something is missing that `peagle demo` needs.
    """
    checks = [check() for check in (_python, _memory, _disk, _engine, _sandbox, _credentials)]
    checks += _docker()
    if as_json:
        print_json({"checks": [asdict(check) for check in checks]})
    else:
        for check in checks:
            _show(check)
    if any(not check.fine and check.needed_for == "demo" for check in checks):
        ctx.exit(3)


def _show(check: Check) -> None:
    mark = click.style("ok", fg="green") if check.fine else click.style("--", fg="yellow")
    texts = [f"{check.what}: {check.found}"]
    texts += [] if check.fine else [f"needed for {check.needed_for}: {check.fix}"]
    lines = [folded(text, room(WIDE), 3) for text in texts]
    click.echo("\n   ".join([f"{mark} {lines[0]}", *lines[1:]]))


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    fine = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Check("Python", version, fine, "demo", "use Python 3.11, 3.12 or 3.13")


def _memory() -> Check:
    machine = this_machine()
    gib = machine.memory_bytes / 2**30
    found = f"{gib:.0f} GiB, {machine.cores} cores, {machine.system} {machine.architecture}"
    return Check("Machine", found, gib >= 4, "demo", "the CPU engine wants 4 GiB of memory")


def _disk() -> Check:
    folder = next(path for path in (home(), *home().parents) if path.is_dir())
    gigabytes = shutil.disk_usage(folder).free / 1e9
    writable = os.access(folder, os.W_OK)
    found = f"{gigabytes:.0f} GB free" if writable else "not to be written"
    fix = f"set PEAGLE_HOME to a folder on a disk with {ENGINE_GB} GB"
    return Check("Home", f"{home()}, {found}", writable and gigabytes >= ENGINE_GB, "demo", fix)


def _engine() -> Check:
    wanted = load_catalog().runtimes.default
    try:
        found = f"vLLM {wanted} in {find_engine(wanted).python}"
    except EngineMissing as missing:
        return Check("Engine", missing.message, False, "demo", missing.fix)
    return Check("Engine", found, True, "demo")


def _sandbox() -> Check:
    fine = find_spec("moto") is not None
    fix = "pip install 'peagle-toolkit[sandbox]'"
    return Check("Sandbox", "moto is here" if fine else "moto is not here", fine, "demo", fix)


def _credentials() -> Check:
    """Only where they would come from: asking AWS is the deploy's business."""
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
    fix = "aws configure, or work with --sandbox"
    return Check("AWS credentials", found, fine, "deploying to AWS", fix)


def _docker() -> list[Check]:
    """The engine, and what else containers need. Without an engine only that."""
    use = "images and --engine docker"
    try:
        found = abilities(Docker())
    except PeagleError as missing:
        return [Check("Docker", missing.message, False, use, missing.fix)]
    buildx, compose = found.plugins.get("buildx"), found.plugins.get("compose")
    compose = compose or shutil.which("docker-compose")  # the plugin, or Debian's program
    builder = f"builds with buildx {buildx}" if buildx else "builds without buildx, which is slower"
    return [
        Check("Docker", f"{found.version}, {builder}", True, use),
        Check("Docker Compose", compose or "not here", compose is not None,
              "the files of --emit-compose", "install Docker's compose plugin"),
        Check("GPUs in containers", "yes" if found.gpus else "no NVIDIA runtime", found.gpus,
              "--engine docker --gpus", "install NVIDIA's container toolkit where GPUs are"),
    ]  # fmt: skip


def _profiles() -> set[str]:
    """The profiles that AWS's own two files name."""
    names: set[str] = set()
    for variable, usual in (
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ("AWS_CONFIG_FILE", "config"),
    ):
        file = Path(os.environ.get(variable) or Path.home() / ".aws" / usual).expanduser()
        parser = RawConfigParser(strict=False)
        with suppress(ParsingError):
            parser.read(file, encoding="utf-8")
        names |= {section.removeprefix("profile ").strip() for section in parser.sections()}
    return names
