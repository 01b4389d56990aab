"""``peagle engine``: vLLM for this machine's CPU."""

from __future__ import annotations

from pathlib import Path

import click

from peagle.catalog import load_catalog
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import json_option, print_json, say
from peagle.engine import find_engine, install_engine, installed_engines
from peagle.engine.install import is_installed, lockable_versions, missing_libraries
from peagle.errors import EngineMissing


@click.group(epilog="Example: peagle engine install")
def engine() -> None:
    """Install vLLM for this machine's CPU, and see what is installed."""


@engine.command(
    cls=PeagleCommand, epilog="Example: peagle engine install --python /usr/bin/python3.12"
)
@click.option("--vllm", metavar="VERSION", help="vLLM version.  [default: the catalogue's]")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="Python that is to run it, 3.11 to 3.13.  [default: the one that runs peagle]",
)
@json_option
def install(vllm: str | None, python: Path | None, as_json: bool) -> None:
    """Install it below $PEAGLE_HOME, from a locked list; quick when it is there already.

    Takes 2 GB of disk and a minute or more. Everything is checked against its hash but torch,
    whose wheel differs by Python.
    """
    version = vllm or load_catalog().runtimes.default
    present = version in lockable_versions() and is_installed(version)
    installed = install_engine(version, python, progress=say)
    if as_json:
        print_json(
            {"vllm": installed.vllm, "python": str(installed.python), "was_installed": present}
        )
        return
    said = "is installed already" if present else "is installed"
    click.echo(f"vLLM {installed.vllm} {said}: {installed.python}")


@engine.command(cls=PeagleCommand, epilog="Example: peagle engine status --json")
@json_option
def status(as_json: bool) -> None:
    """Show the engine that would be used, and all that are here."""
    wanted = load_catalog().runtimes.default
    used: str | None
    try:
        used, missing = str(find_engine(wanted).python), ""
    except EngineMissing as error:
        used, missing = None, str(error)
    engines = [{"vllm": one.vllm, "python": str(one.python)} for one in installed_engines()]
    libraries = list(missing_libraries())
    if as_json:
        print_json(
            {"vllm": wanted, "python": used, "installed": engines, "missing_packages": libraries}
        )
        return
    click.echo(f"vLLM {wanted}: {used}" if used else missing)
    for one in engines:
        if one["python"] != used:
            click.echo(f"also vLLM {one['vllm']}: {one['python']}")
    if libraries:
        click.echo(f"missing from the system: {', '.join(libraries)}")
