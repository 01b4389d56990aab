"""``peagle list``, ``status``, ``drift``, ``logs`` and ``top``: what is deployed, and its use."""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import click

from peagle.cli import view
from peagle.cli.context import is_plan_file
from peagle.cli.options import command, option
from peagle.cli.plan_options import plan_in_project
from peagle.cli.project import ACCOUNT, CHOICE
from peagle.cli.session import Session, cloud_options, deployment_command
from peagle.cli.view.watch import LISTED, print_deployment, print_drift, usage_screen
from peagle.deploy.drift import find_drift, find_template_drift, served_image
from peagle.deploy.status import (
    ENDED,
    Listing,
    deployment_status,
    endpoint_log,
    read_endpoint_usage,
)
from peagle.engine.usage import WINDOW_SECONDS, EngineMeter
from peagle.errors import OptionsConflict, Refused, UserError
from peagle.planning import Plan
from peagle.render import read_plan
from peagle.render.requests import deploy_command
from peagle.sandbox.client import SANDBOX_KILLED, sandbox_not_running


@command("peagle list --json", name="list")
@cloud_options
def list_deployments(session: Session) -> None:
    """List the deployments of the account, whichever machine or template made them.

    Looks in --region; without the option, in your default region and in those of this machine's
    deployments. The cost so far is since the endpoint was requested.
    """
    listing = session.listing() if session.is_available else Listing((), ())
    if not session.is_available and (stopped := sandbox_not_running()).code == SANDBOX_KILLED:
        raise stopped
    for problem in (*listing.damaged, *listing.unknown):
        view.print_status(f"{problem.message} ({problem.fix})")
    complete = not (listing.unknown or listing.damaged)
    document: dict[str, Any] = {"deployments": listing.rows, "complete": complete}
    if listing.damaged:
        document["damaged"] = listing.damaged
    view.print_result(document, lambda _: view.print_documents(listing.rows, LISTED))
    if not listing.rows:
        view.print_status("No deployments." if session.is_available else "No sandbox is running.")


@deployment_command("peagle status peagle-tiny --sandbox --json")
def status(name: str, session: Session) -> None:
    """Show the deployment NAME: state, measured acceptance, URL, price and resources.

    States are SageMaker's, and four more: Unproved (in service, acceptance not proved),
    Incomplete (deploy was interrupted), Missing (the endpoint was deleted elsewhere), Ended (it was
    deleted at its end time).
    """
    record, aws = session.find(name, complete=True)
    shown = deployment_status(aws, record)
    continued: tuple[str, ...] = ()
    if shown.state == ENDED:
        continued = ("peagle", "reap")
    elif shown.state in ("Creating", "Unproved") and not record.owner:  # as after --no-wait
        plan = record.current.plan
        again = deploy_command(plan) if plan else None
        unproved = shown.state == "Unproved"
        continued = tuple(again or (("peagle", "prove", name) if unproved else ()))
    view.print_result(shown, lambda _: print_deployment(shown, session.sandbox, continued))


@deployment_command(
    "peagle drift plan.json",
    "peagle drift -e production --json",
    "peagle drift peagle-tiny --sandbox",
    metavar="NAME|PLAN",
    keys=(*ACCOUNT, "role"),
)
@option("--role", "Execution role of the plan: ARN or name.", envvar="PEAGLE_ROLE")
@option("--template DIR", "Compare the files of `peagle render` in this folder as well.",
        click.Path(file_okay=False, path_type=Path))  # fmt: skip
@click.pass_context
def drift(
    ctx: click.Context, name: str, role: str | None, template: Path | None, session: Session
) -> None:
    """Compare a plan with what the account has, field by field. Changes nothing.

    Compares the image, environment, engine arguments and data of the model; the configuration; the
    endpoint's state and instances; scaling and its wake-up, alarms and metric filters, retention of
    the log, dashboard, end and its schedule, tags. The plan is a file, that of an endpoint in the
    project file (--environment), or the one with which this machine deployed NAME. Resources that a
    template made are compared too.

    Exits with 0 without drift, 3 with drift, and 4 if something could not be read.
    """
    plan = _planned(ctx, session, name)
    if not session.is_available:
        raise sandbox_not_running()
    files = find_template_drift(plan, template, session.catalog) if template else ()
    with view.show_hashing():
        drift = find_drift(session.aws(plan.region), plan, session.catalog.instances, role, files)
    where = f"{drift.name} in {session.where(drift.region)}"
    view.print_result(drift, lambda drift: print_drift(drift, where))
    for area, error in drift.unknown.items():
        view.print_status(f"{area} is unknown: {error.message}")
    if drift.drifted:
        ctx.exit(Refused.exit_code)
    for error in drift.unknown.values():
        raise error


def _planned(ctx: click.Context, session: Session, name: str) -> Plan:
    """The plan to compare with: of a file, the project file, or the record of NAME."""
    if is_plan_file(name):
        return read_plan(Path(name))
    if CHOICE in ctx.meta:
        image = None
        if ctx.meta[CHOICE].builds_image and session.is_available:
            image = served_image(session.aws(), name)
        return plan_in_project(ctx, "deploy", image=image)
    record, _ = session.find(name)
    plan = record.current.plan
    if plan is None:
        fix = "name the plan's file, or an environment of the project file with --environment"
        raise UserError(f"the plan of {name} is not on this machine", fix, code="no-plan")
    return plan


@deployment_command("peagle logs peagle-tiny -f --sandbox")
@option("--follow -f", "Follow the log until Ctrl-C.", bool)
@option("--since", "Show lines newer than this, such as 10m or 2h.  [default: since creation]",
        "duration")  # fmt: skip
def logs(name: str, session: Session, follow: bool, since: int | None) -> None:
    """Show the CloudWatch log of the deployment NAME."""
    if follow and view.wants_json():
        raise OptionsConflict("--follow and --json are mutually exclusive", "omit one of them")
    record, aws = session.find(name)
    lines = endpoint_log(aws, record, None if since is None else time.time() - since, follow)
    if not view.print_log(record.name, lines, follow):
        view.print_status("No lines yet." if since is None else "No lines in that time.")


_ON_AWS_SECONDS, _HERE_SECONDS = 10, 2
"""How often the screen is read again: on AWS most numbers change once a minute, and queries cost
money."""


@deployment_command("peagle top peagle-tiny --sandbox --once")
@option("--once", "Print one screen and end.  [default without a terminal]", bool)
@option("--window", "How far back to measure; 1m at least.  [default: 5m]", "duration")
@option("--every", "Time between two screens.  [default: 10s; 2s in the sandbox and for a "
        "local engine]", "duration")  # fmt: skip
def top(name: str, session: Session, once: bool, window: int | None, every: int | None) -> None:
    """Show how the deployment NAME, or the local engine of that name, is used: requests, times,
    KV cache, acceptance and cost.

    Requests and TTFT come from CloudWatch, a minute or two late on AWS; the rest comes from vLLM's
    statistics in the log, and for a local engine all of it from its /metrics. ITL is the mean while
    requests run. Ctrl-C ends it.
    """
    here = True
    if engine := session.local_engine(name):
        read = EngineMeter(engine, window or WINDOW_SECONDS).read
    else:
        record, aws = session.find(name)
        here = session.sandbox
        read = partial(read_endpoint_usage, aws, record, window or WINDOW_SECONDS)
    if view.wants_json():
        return view.print_json(read())
    if once or not sys.stdout.isatty():
        for line in usage_screen(read(), min(view.line_width(), 120)):
            click.echo(line)
        return None
    seconds = every or (_HERE_SECONDS if here else _ON_AWS_SECONDS)
    try:
        while True:
            usage = read()
            at = time.strftime("%H:%M:%S", time.localtime(usage.at))
            lines = usage_screen(usage, view.line_width())
            click.clear()
            click.echo("\n".join((*lines, "", f"  {at}, again every {seconds:g} s; Ctrl-C ends")))
            time.sleep(seconds)
    except KeyboardInterrupt:  # the usual end
        return None
