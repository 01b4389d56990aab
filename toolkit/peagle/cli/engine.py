"""``peagle engine``: vLLM for this machine's CPU."""

from __future__ import annotations

from pathlib import Path

import click

from peagle.cli.context import PeagleCommand, fix_in_context
from peagle.cli.options import command_catalog
from peagle.cli.view.console import (
    json_option,
    print_small,
    print_status,
)
from peagle.engine.install import install_engine, is_installed, missing_libraries
from peagle.engine.machine import find_engine, installed_engines
from peagle.errors import EngineMissing


@click.group(epilog="Example: peagle engine install")
def engine() -> None:
    """Install vLLM for this machine's CPU, and show what is installed."""


@engine.command(
    cls=PeagleCommand, epilog="Example: peagle engine install --python /usr/bin/python3.12"
)
@click.option("--vllm", metavar="VERSION", help="vLLM version.  [default: the catalogue's]")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="Python to run the engine, 3.11 to 3.13.  [default: the one that runs peagle]",
)
@json_option
@click.pass_context
def install(ctx: click.Context, vllm: str | None, python: Path | None, as_json: bool) -> None:
    """Install the engine below $PEAGLE_HOME, from a lock file.

    Needs 2 GB of disk and takes a minute or more; does nothing if already installed. uv installs
    it from the indexes and folders that pip is configured with, and checks every hash. Without
    PyTorch's index, torch's wheel for your Python must be in a folder of PIP_FIND_LINKS.
    """
    version = vllm or command_catalog(ctx).runtimes.default
    present = is_installed(version)
    installed = install_engine(version, python, progress=print_status)
    document = {"vllm": version, "python": str(installed.python), "was_installed": present}
    print_small(document, as_json)


@engine.command(cls=PeagleCommand, epilog="Example: peagle engine status --json")
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the engine in use and all installed engines."""
    version = command_catalog(ctx).runtimes.default
    used, missing = None, None
    try:
        used = str(find_engine(version).python)
    except EngineMissing as error:
        missing = error
    document = {
        "vllm": version,
        "python": used,
        "installed": [
            {"vllm": engine.vllm, "python": str(engine.python)} for engine in installed_engines()
        ],
        "missing_packages": list(missing_libraries()),
    }
    print_small(document, as_json)
    if missing and not as_json:
        print_status(missing.message, fix_in_context(missing.fix, missing.command))
