"""``peagle render``: the plan as a template, a script or a build context."""

from __future__ import annotations

from pathlib import Path

import click

from peagle import api
from peagle.cli.options import command_catalog, refuse_errors
from peagle.cli.output.console import json_option, print_json, print_status
from peagle.cli.parameter_types import OneOf, OutputPath
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand
from peagle.planning import Plan

_FORMATS = api.format_names()

_FILES = "\n".join(f"{name}: {', '.join(api.format_files(name))}" for name in _FORMATS)

_HELP = f"""Write PAIR or PLAN as FORMAT.

Every format expresses the complete plan, or fails and lists the formats that can.

\b
{_FILES}
"""


@click.command(
    cls=ProjectCommand,
    help=_HELP,
    short_help=f"Write a plan as {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}.",
    epilog="Example: peagle render terraform gpt-oss-20b -o infra/gpt-oss-20b",
)
@click.argument("format", metavar="FORMAT", type=OneOf(_FORMATS))
@plan_options
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    required=True,
    type=OutputPath("folder"),
    help="Folder for the files; created if needed.",
)
@click.option("--force", is_flag=True, help="Replace files in a folder that is not empty.")
@json_option
def render(format: str, plan: Plan, output: Path, force: bool, as_json: bool) -> None:
    """Write the files of ``format`` for the plan to the folder ``output``."""
    refuse_errors(list(dict.fromkeys(api.findings_of_format(plan, format))))
    files = api.render(format, plan, command_catalog())
    api.write_folder(output, files, force)
    paths = [str(output / file.path) for file in files]
    if as_json:
        return print_json({"format": format, "pair": plan.pair, "files": paths})
    print_status(f"{plan.pair} as {format}:")
    for path in paths:
        click.echo(path)
    return None
