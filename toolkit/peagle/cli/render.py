"""``peagle render``: the plan as a template, a script or a build context."""

from __future__ import annotations

from pathlib import Path

import click

from peagle.cli.context import PeagleCommand
from peagle.cli.image_push import findings_of_own
from peagle.cli.options import plan_options, refuse_errors
from peagle.cli.output.console import json_option, print_json, say
from peagle.cli.output.files import write_folder
from peagle.planning import Plan
from peagle.render import FORMATS
from peagle.render import render as render_plan


@click.command(
    cls=PeagleCommand, epilog="Example: peagle render terraform gpt-oss-20b -o infra/gpt-oss-20b"
)
@click.argument("format", metavar="FORMAT", type=click.Choice(list(FORMATS)))
@plan_options
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder for the files; made when it is not there.",
)
@click.option("--force", is_flag=True, help="Replace files in a folder that is not empty.")
@json_option
def render(format: str, plan: Plan, output: Path, force: bool, as_json: bool) -> None:
    """Write PAIR or PLAN as FORMAT: cloudformation, terraform, boto3 or dockerfile.

    All formats say the same plan; what a format cannot say is refused, never left out.
    """
    refuse_errors(findings_of_own(plan) if format == "dockerfile" else plan.findings)
    if format == "boto3":
        from peagle.request_validation import problems_of  # brings botocore: not for --help

        refuse_errors(problems_of(plan))
    files = render_plan(format, plan)
    write_folder(output, files, force)
    paths = [str(output / file.path) for file in files]
    if as_json:
        return print_json({"format": format, "pair": plan.pair, "files": paths})
    say(f"{plan.pair} as {format}:")
    for path in paths:
        click.echo(path)
    return None
