"""``peagle render`` and ``peagle ci``: the plan as files, and pipelines that deploy it."""

from __future__ import annotations

import re
from pathlib import Path

import click

from peagle.cli import view
from peagle.cli.context import root_group
from peagle.cli.options import command, command_catalog, option, output_option, print_and_refuse
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand, file_options, load_project
from peagle.data import data_folder
from peagle.errors import UserError
from peagle.images.build import check_format
from peagle.planning import Plan
from peagle.project import (
    FILE_NAME,
    KINDS,
    SCHEMA,
    PipelineKind,
    list_project_endpoints,
    pipeline_files,
    project_schema,
    schema_bytes,
    toolkit_source,
)
from peagle.render import format_files, format_names
from peagle.render import render as render_plan
from peagle.render.files import write_folder
from peagle.store import write_output

_FORMATS = format_names()
_FOLDER = click.Path(file_okay=False, path_type=Path)

_FILES = "\n".join(f"{name}: {', '.join(format_files(name))}" for name in _FORMATS)

_HELP = f"""Write PAIR or PLAN as FORMAT.

Every format expresses the complete plan, or fails and lists the formats that can.

\b
{_FILES}
"""


@command(
    "peagle render terraform gpt-oss-20b -o infra/gpt-oss-20b",
    cls=ProjectCommand,
    help=_HELP,
    short_help=f"Write a plan as {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}.",
)
@click.argument("format", metavar="FORMAT", type=click.Choice(_FORMATS))
@plan_options
@option("-o --output DIR", "Folder for the files; created if needed.", _FOLDER, required=True)
@option("--force", "Replace files in a folder that is not empty.", bool)
def render(format: str, plan: Plan, output: Path, force: bool) -> None:
    """Write the files of ``format`` for the plan to the folder ``output``."""
    findings = dict.fromkeys(check_format(plan, format))
    print_and_refuse([finding for finding in findings if finding.level != "note"])
    files = render_plan(format, plan, command_catalog())
    write_folder(output, files, force)
    paths = [str(output / file.path) for file in files]

    def show(_: object) -> None:
        view.print_status(f"{plan.pair} as {format}:")
        click.echo("\n".join(paths))

    view.print_result({"format": format, "pair": plan.pair, "files": paths}, show)


@click.group(epilog="Example: peagle ci init github --repository acme/models")
def ci() -> None:
    """Write pipelines for the endpoints of peagle.yaml, and the schema of that file."""


@command(
    "peagle ci init github --repository acme/models --account 111122223333",
    "peagle ci init codepipeline --toolkit https://pypi.example.com/simple/",
    of=ci,
)
@click.argument("kind", metavar="github|codepipeline", type=click.Choice(KINDS))
@option("--folder DIR", "The repository.  [default: this folder]", _FOLDER, default=Path(),
        show_default=False)  # fmt: skip
@option("--repository OWNER/NAME", "For the trust of the roles.")
@option("--account ID", "AWS account, for the policies.")
@option("--partition", "Partition of the account.", default="aws")
@option("--toolkit SOURCE", "What the pipeline installs: a wheel in the repository, a URL "
        "with #sha256=HASH, or an index.  [default: the wheel of this checkout, written to "
        "wheels/]")  # fmt: skip
@option("--force", "Replace files that differ, except peagle.yaml.", bool)
@click.pass_context
def init(
    ctx: click.Context,
    kind: PipelineKind,
    folder: Path,
    repository: str | None,
    account: str | None,
    partition: str,
    toolkit: str | None,
    force: bool,
) -> None:
    """Write a pipeline for the endpoints of peagle.yaml, which is written too if there is none.

    The pipeline plans every change, with its price, and deploys to the environments staging and
    production: proof and benchmark are gates, with the limits in the file. A nightly run checks for
    drift, and removes what has ended. No key is stored. Never overwrites without --force.
    """
    for flag, value, pattern, form in (
        ("--account", account, r"[0-9]{12}", "12 digits"),
        ("--repository", repository, r"[\w.-]+/[\w./-]+", "OWNER/NAME"),
    ):
        if value is not None and not re.fullmatch(pattern, value):
            raise UserError(f"{flag} {value!r} is not {form}", f"write {form}")
    files: dict[str, bytes] = {}
    endpoints = ["chat"]
    if (folder / FILE_NAME).exists():
        endpoints = list_project_endpoints(load_project(ctx, folder / FILE_NAME))
    else:
        files[FILE_NAME] = (data_folder("infra/pipelines") / FILE_NAME).read_bytes()
    files[SCHEMA] = schema_bytes(project_schema(file_options(root_group(ctx))))
    placeholders = {
        "account": account,
        "repository": repository,
        "partition": account and partition,
    }
    values = {key: value for key, value in placeholders.items() if value}
    arguments, wheels = toolkit_source(toolkit)
    files |= wheels
    for name, content in pipeline_files(kind, endpoints, arguments, values).items():
        # Without values, a policy that is there would lose the user's.
        if values or not name.startswith("iam/") or not (folder / name).is_file():
            files[name] = content
    _write(folder, files, force)
    filled = account is not None and (repository is not None or kind != "github")
    text = (data_folder("infra/pipelines") / f"next-{kind}.txt").read_text("utf-8")
    steps = text.splitlines()[filled:]  # the first one is what fills in the placeholders
    if kind == "codepipeline" and endpoints[1:]:
        steps.append(f"deploy the stack once more, with Endpoint, for {', '.join(endpoints[1:])}")
    view.print_json({"kind": kind, "files": list(files), "next": steps})
    for name in files:
        view.print_written(folder / name)
    view.print_status("Next:")
    for number, step in enumerate(steps, 1):
        view.print_status(f"  {number}. {step}")


def _write(folder: Path, files: dict[str, bytes], force: bool) -> None:
    """Write the files. Raises UserError, before any is written, for one that differs."""
    differing = [
        name
        for name, content in files.items()
        if (folder / name).exists()
        and not ((folder / name).is_file() and (folder / name).read_bytes() == content)
    ]
    if differing and not force:
        message = f"{', '.join(differing)} would be replaced"
        raise UserError(message, "compare them, then add --force", code="file-exists")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_output(folder / name, content)


@command("peagle ci schema -o peagle.schema.json", of=ci, json=False)
@output_option("Write the schema to this file.")
@click.pass_context
def schema(ctx: click.Context, output: Path | None) -> None:
    """Print the JSON schema of peagle.yaml, which editors complete and check the file with."""
    document = schema_bytes(project_schema(file_options(root_group(ctx))))
    if output is None:
        view.print_text(document.decode(), nl=False)
        return
    write_output(output, document)
    view.print_written(output)
