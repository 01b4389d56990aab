"""``peagle deploy``: show the plan, ask, apply it, prove it, and show how to call it."""

from __future__ import annotations

import time
from typing import Any

import click

from peagle.account import DeploymentChange
from peagle.aws.client import Aws
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.cli import view
from peagle.cli.context import is_plan_file, typed_command
from peagle.cli.options import PLAN_FIELDS, command, deploy_options, option, print_and_refuse
from peagle.cli.plan_options import plan_options, planned
from peagle.cli.project import ProjectCommand, require_built_image
from peagle.cli.session import NOT_REPEATED, Session, account_options
from peagle.cli.view.deploy import print_calls, show_not_applied, show_plan
from peagle.cli.view.watch import warm_start_text
from peagle.deploy.apply import Fallback, RolledBack, deploy_where_possible
from peagle.deploy.preflight import CHECKED_AGAIN, Preflight
from peagle.deploy.records import readable_records
from peagle.deploy.status import reported_warm_start
from peagle.errors import NotProved, OptionsConflict, Refused, command_line
from peagle.findings import errors, refuse_errors
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.text import format_price, plain

_QUESTIONS = {
    "create": "Deploy this plan?",
    "scale": "Change the scaling of the endpoint?",
    "update": "Update the endpoint to this plan?",
}
"""The changes that need a confirmation, and its question."""


@command(
    "peagle deploy tiny --sandbox",
    "peagle deploy gpt-oss-20b --role MyRole",
    "peagle deploy gpt-oss-20b --fallback-instance-types ml.g6e.2xlarge,ml.g5.12xlarge "
    "--retry-for 2h",
    cls=ProjectCommand,
)
@plan_options
@account_options
@deploy_options
@option("--bucket", "S3 bucket for uploading local weights.  [default: "
        "peagle-sagemaker-REGION-ACCOUNT, created if needed]")  # fmt: skip
@option("--no-wait", "Return once the endpoint is requested, without waiting or verifying.", bool)
@option("--keep-failed", "Keep a new endpoint whose engine cannot start, to look at it; else "
        "it is removed.", bool)  # fmt: skip
@option("--keep-unproved", "Keep an update in service whose proof fails.  [default: return to "
        "what served before]", bool)  # fmt: skip
@option("--fallback-instance-types fallback_types TYPE,...", "Instance types to try, in this "
        "order, when AWS has no free instance.")  # fmt: skip
@option("--retry-for", "Keep trying for this time when AWS has no free instance, "
        "such as 2h.", "duration")  # fmt: skip
@click.pass_context
def deploy(
    ctx: click.Context,
    /,
    plan: Plan,
    session: Session,
    role: str | None,
    bucket: str | None,
    keep_failed: bool,
    keep_unproved: bool,
    accept_unknown_price: bool,
    **_: Any,
) -> None:
    """Deploy PAIR to a SageMaker endpoint and prove that its drafts are accepted.

    Shows resources, location and price, and asks for confirmation. Running it again does
    nothing, resumes an interrupted deployment, or updates the endpoint. An update whose proof
    fails returns to what served before, which is kept for `peagle rollback`.

    While the endpoint starts, its log is watched: if it shows that the engine will never serve
    (out of memory, invalid settings, missing weights), the wait ends at once, and what was created
    is removed, unless with --keep-failed.
    """
    if errors(plan.findings):
        print_and_refuse(plan.findings)
    require_built_image(ctx)
    fallbacks = _plan_fallbacks(ctx, plan)
    with session.changing(plan.name, plan.region, creates=True) as change:

        def prepare(plan: Plan) -> Preflight:
            with view.show_hashing():
                return change.prepare(
                    plan, role, bucket, accept_unknown_price=accept_unknown_price,
                    review=lambda preflight: show_and_refuse(preflight, session, keep_unproved),
                )  # fmt: skip

        preflight = prepare(plan)
        if preflight.change == "create" and not ctx.params.get("name"):
            _refuse_second(ctx, change.aws, preflight.desired.plan)
        if preflight.change in _QUESTIONS or preflight.scaling is not None:
            for other in fallbacks:
                price = format_price(other.price_per_hour_usd)
                view.print_facts([("fallback", f"{other.instance_type}, {price}")])
            view.confirm(_QUESTIONS.get(preflight.change, _QUESTIONS["scale"]), "not deployed")
        fallback = Fallback(prepare, fallbacks, ctx.params["retry_for"] or 0.0)
        begun, unproved = time.time(), None
        try:
            preflight = change.run(
                deploy_where_possible,
                preflight,
                fallback,
                not ctx.params["no_wait"],
                keep_unproved=keep_unproved,
                keeps_failed=lambda error: keep_failed,
            )
        except NotProved as error:
            unproved = error
        _report(ctx, session, change, preflight, fallback, begun, unproved)
        if unproved:  # what served before may serve
            raise unproved


def _report(
    ctx: click.Context,
    session: Session,
    change: DeploymentChange,
    preflight: Preflight,
    fallback: Fallback,
    begun: float,
    unproved: NotProved | None,
) -> None:
    plan, aws, is_waited_for = preflight.desired.plan, change.aws, not ctx.params["no_wait"]
    warm = reported_warm_start(aws, preflight, begun) if is_waited_for else None
    if warm:
        view.print_status(warm_start_text(warm))
    status = change.status()
    document = plain(status) | {
        "changed": preflight.change in _QUESTIONS or bool(preflight.changes),
        "changes": preflight.changes,
        "rolled_back": isinstance(unproved, RolledBack),
        "warm_start": warm,
        "tried": fallback.attempts,
        "licences": {
            "target": plan.target.licence or None,
            "drafter": plan.drafter.licence if plan.drafter else None,
        },
        "pins": plan.pins,
    }
    if session.sandbox and is_waited_for:
        document["not_applied"] = show_not_applied(plan.name, aws.region)
    view.print_json(document)
    if not is_waited_for:
        requested = "The endpoint was requested. To wait for it and verify acceptance"
        view.print_status(requested, command_line(typed_command(without=NOT_REPEATED)))
    elif not unproved:
        print_calls(status, preflight, session)


def show_and_refuse(preflight: Preflight, session: Session, keep_unproved: bool = False) -> None:
    """Show plan, findings and change. Raises Refused with the first error."""
    show_plan(preflight, session, keep_unproved)
    omitted = CHECKED_AGAIN | NOT_IN_SANDBOX if session.sandbox else CHECKED_AGAIN
    if preflight.change not in ("create", "update"):  # nothing starts
        omitted |= {"limit-before-start"}
    planned = [
        finding
        for finding in preflight.desired.plan.findings
        if finding.level != "note" and finding.code not in omitted
    ]
    print_and_refuse((*planned, *preflight.findings))


def _refuse_second(ctx: click.Context, aws: Aws, plan: Plan) -> None:
    """With --yes, refuse a second endpoint of a target whose name the user did not choose; else say
    so."""
    if is_plan_file(ctx.params["pair"]):
        return
    records, _ = readable_records(aws.scope)
    prefix = ctx.params.get("name_prefix") or DEFAULT_PREFIX
    names = [
        record.name
        for record in records
        if record.region == plan.region
        and record.name.startswith(prefix)
        and record.serving
        and record.serving.served.pair.partition("+")[0] == plan.target.id
    ]
    if not names or plan.name in names:  # a failed endpoint is made again under its name
        return
    message = f"{names[0]} serves {plan.target.id} already; {plan.name} would be a second endpoint"
    if ctx.params["yes"]:
        message += f", at {format_price(plan.price_per_hour_usd, aws.in_sandbox)}"
        fix = f"add --name {names[0]} to update it, or --name {plan.name} for a second one"
        raise Refused(message, fix, code="second-endpoint")
    view.print_status(f"{message}. To update it instead, add --name {names[0]}.")


def _plan_fallbacks(ctx: click.Context, plan: Plan) -> tuple[Plan, ...]:
    types = ctx.params["fallback_types"]
    if types is None:
        return ()
    if is_plan_file(ctx.params["pair"]):
        message = "--fallback-instance-types cannot be combined with a plan file"
        raise OptionsConflict(message, "use PAIR and its options: each type has a plan of its own")
    chosen = {field: ctx.params[field] for field in PLAN_FIELDS & ctx.params.keys()}
    pair, plans = chosen.pop("pair"), list[Plan]()
    for kind in dict.fromkeys(map(str.strip, types.split(","))):
        if kind != plan.instance_type:
            # Another drafter may be faster there, which the usual name would have.
            plans.append(planned(ctx, pair, chosen | {"name": plan.name, "instance_type": kind}))
            refuse_errors(plans[-1].findings)
    return tuple(plans)
