"""``peagle drift``: where the account, or a rendered template, differs from a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.cli.account import (
    Account,
    cloud_options,
    complete_name,
    find_deployment,
)
from peagle.cli.context import is_plan_file
from peagle.cli.options import command_catalog
from peagle.cli.output.console import (
    align_columns,
    json_option,
    print_json,
    print_line,
    print_status,
    table_width,
    terminal_width,
)
from peagle.cli.output.progress import show_hashing
from peagle.cli.planned import plan_in_project
from peagle.cli.project import ACCOUNT, CHOICE, ProjectCommand, endpoint_argument
from peagle.deploy.drift import Drift
from peagle.deploy.resources import FieldDrift
from peagle.errors import Refused, UserError
from peagle.planning import Plan
from peagle.text import shortened

_LONGEST_VALUE = 60


@click.command(
    cls=ProjectCommand,
    epilog="""\b
Examples:
  peagle drift plan.json
  peagle drift -e production --json
  peagle drift peagle-tiny --sandbox
""",
)
@endpoint_argument(complete_name, "NAME|PLAN", keys=(*ACCOUNT, "role"))
@click.option("--role", envvar="PEAGLE_ROLE", help="Execution role of the plan: ARN or name.")
@click.option(
    "--template",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Compare the files of `peagle render` in this folder as well.",
)
@cloud_options
@json_option
@click.pass_context
def drift(
    ctx: click.Context,
    name: str,
    role: str | None,
    template: Path | None,
    region: str | None,
    account: Account,
    as_json: bool,
) -> None:
    """Compare a plan with what the account has, field by field. Changes nothing.

    Compares the image, environment, engine arguments and data of the model; the configuration; the
    endpoint's state and instances; scaling and its wake-up, alarms and metric filters, retention of
    the log, dashboard, end and its schedule, tags. The plan is a file, that of an endpoint in the
    project file (--environment), or the one with which this machine deployed NAME. Resources that a
    template made are compared too.

    Exits with 0 without drift, 3 with drift, and 4 if something could not be read.
    """
    plan = _plan(ctx, account, name, region)
    if not account.is_available:
        raise api.sandbox_not_running()
    catalog = command_catalog(ctx)
    files = api.find_template_drift(plan, template, catalog) if template else ()
    with show_hashing():
        found = api.find_drift(account.connect(plan.region), plan, catalog.instances, role)
    fields = (*found.fields, *files)
    if as_json:
        document = found.document() | {"drifted": bool(fields)}
        print_json(document | {"fields": [one.document() for one in fields]})
    else:
        _show(found, fields, account)
    for area, error in found.unknown.items():
        print_status(f"{area} is unknown: {error.message}")
    if fields:
        ctx.exit(Refused.exit_code)
    for error in found.unknown.values():
        raise error


def _plan(ctx: click.Context, account: Account, name: str, region: str | None) -> Plan:
    """The plan to compare with: of a file, of the project file, or of the record of NAME."""
    if is_plan_file(name):
        return api.read_plan(Path(name))
    if CHOICE in ctx.meta:
        image = None
        if ctx.meta[CHOICE].builds_image and account.is_available:
            image = api.served_image(account.connect(region or api.default_region()), name)
        return plan_in_project(ctx, "deploy", image=image)
    record, _ = find_deployment(account, name, region or None)
    plan = record.current.plan
    if plan is None:
        raise UserError(
            f"the plan of {name} is not on this machine",
            "name the plan's file, or an environment of the project file with --environment",
            code="no-plan",
        )
    return plan


def _show(found: Drift, fields: tuple[FieldDrift, ...], account: Account) -> None:
    where = account.where(found.region)
    if not fields:
        areas = ", ".join(found.compared)
        print_line(f"{found.name} in {where}: no drift in {areas}")
        return
    if [one.field for one in fields] == ["endpoint.status"] and fields[0].found is None:
        print_line(f"{found.name} in {where} is not deployed: it has no endpoint", bold=True)
        return
    count = "1 field differs" if len(fields) == 1 else f"{len(fields)} fields differ"
    print_line(f"{found.name} in {where}: {count} from the plan", bold=True)
    rows = [("FIELD", "PLANNED", "FOUND")]
    rows += [(one.field, _shown(one.planned), _shown(one.found)) for one in fields]
    if table_width(rows) <= terminal_width():
        click.echo("\n".join(align_columns(rows)))
        return
    for field, planned, seen in rows[1:]:
        for line in (field, f"  planned  {planned}", f"  found    {seen}"):
            print_line(line)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return shortened(text, _LONGEST_VALUE)
