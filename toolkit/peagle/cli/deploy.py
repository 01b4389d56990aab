"""``peagle deploy``: show the plan, ask, apply it, prove it, and show how to call it."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict, dataclass
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.cli.account import Account, account_options
from peagle.cli.context import PeagleCommand, typed_command
from peagle.cli.failed_start import end_failed_start
from peagle.cli.fallback import (
    attempts_document,
    fallback_of,
    fallback_options,
    planned_fallbacks,
    show_attempts,
    show_fallbacks,
)
from peagle.cli.options import command_catalog, deploy_options, plan_options, refuse_errors
from peagle.cli.output.console import confirm, json_option, print_json, print_status
from peagle.cli.output.deploy import print_calls, show_plan, show_remaining_resources
from peagle.cli.output.not_applied import show_not_applied
from peagle.cli.output.progress import DeploymentProgress
from peagle.deploy.apply import RolledBack
from peagle.deploy.fallback import Attempt, Fallback
from peagle.deploy.preflight import CHECKED_AGAIN, Preflight
from peagle.deploy.watch import WillNotServe
from peagle.errors import NotProved, PeagleError, Refused, UserError
from peagle.findings import errors
from peagle.planning import Plan
from peagle.text import format_price

_NOT_REPEATED = ("--yes", "--no-wait", "--keep-failed", "--json")
"""Options of this command that the command to continue with omits."""


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle deploy tiny --sandbox
  peagle deploy gpt-oss-20b --role MyRole
  peagle deploy gpt-oss-20b --fallback-instance-types ml.g6e.2xlarge,ml.g5.12xlarge --retry-for 2h
""",
)
@plan_options
@account_options
@deploy_options
@click.option(
    "--bucket",
    help="S3 bucket for uploading local weights.  "
    "[default: peagle-sagemaker-REGION-ACCOUNT, created if needed]",
)
@click.option(
    "--no-wait",
    is_flag=True,
    help="Return once the endpoint is requested, without waiting or verifying.",
)
@click.option(
    "--keep-failed",
    is_flag=True,
    help="Keep a new endpoint whose engine cannot start, to look at it; else it is removed.",
)
@click.option(
    "--prove-first",
    is_flag=True,
    help="Prove an update on a temporary endpoint of one instance before the switch.",
)
@click.option(
    "--keep-unproved",
    is_flag=True,
    help="Keep an update in service whose proof fails.  [default: return to what served before]",
)
@fallback_options
@json_option
@click.pass_context
def deploy(
    ctx: click.Context,
    /,
    plan: Plan,
    account: Account,
    role: str | None,
    bucket: str | None,
    yes: bool,
    no_wait: bool,
    keep_failed: bool,
    prove_first: bool,
    keep_unproved: bool,
    accept_unknown_price: bool,
    as_json: bool,
    **_: Any,
) -> None:
    """Deploy PAIR to a SageMaker endpoint and prove that its drafts are accepted.

    Shows resources, location and price, and asks for confirmation. Running it again does
    nothing, resumes an interrupted deployment, or updates the endpoint. An update whose proof
    fails returns to what served before, which is kept for `peagle rollback`.

    While the endpoint starts, its log is watched: if it shows that the engine will never serve
    (out of memory, invalid settings, missing weights), the wait ends at once, and what was created
    is removed after a question, or without one with --yes.
    """
    if prove_first and no_wait:
        raise UserError(
            "--prove-first and --no-wait are mutually exclusive: the update waits for the proof",
            "omit one of them",
        )
    choices = ProofChoices(prove_first, keep_unproved)
    if errors(plan.findings):
        refuse_errors(plan.findings)
    others = planned_fallbacks(ctx, plan)
    if account.sandbox:
        api.check_sandbox_engine()
    started = account.start()
    aws = account.connect(plan.region)
    instances = command_catalog(ctx).instances
    with api.deployment_lock(aws.scope, plan.region, plan.name):
        with account.stopped_on_error(started):

            def checked(plan: Plan) -> Preflight:
                found = api.preflight(aws, plan, instances, role, bucket)
                show_and_refuse(found, account, choices)
                if found.change in ("create", "update"):
                    refuse_unknown_price(found.desired.plan, accept_unknown_price)
                return found

            found = checked(plan)
            if found.change in ("create", "update"):
                show_fallbacks(others)
                if not yes:
                    creates = found.change == "create"
                    question = (
                        "Deploy this plan?" if creates else "Update the endpoint to this plan?"
                    )
                    confirm(question, "not deployed", "review the plan above, then pass --yes")
        again = shlex.join(typed_command(ctx, "deploy", without=_NOT_REPEATED))
        remove_failed = False if keep_failed else (yes or None)
        fallback = fallback_of(ctx, plan, others, checked)
        _deploy(aws, found, account, again, choices, fallback, not no_wait, remove_failed, as_json)


@dataclass(frozen=True)
class ProofChoices:
    """When an update is proved, and what a failed proof means."""

    prove_first: bool = False
    keep_unproved: bool = False


def _deploy(
    aws: Aws,
    found: Preflight,
    account: Account,
    again: str,
    choices: ProofChoices,
    fallback: Fallback,
    wait: bool,
    remove_failed: bool | None,
    as_json: bool,
) -> None:
    """Apply, prove and report, after the confirmation; if something ends it early, show what
    exists. ``again`` is the command that continues; ``remove_failed``: remove an endpoint that will
    never serve, ``None`` to ask."""
    name = found.desired.plan.name
    unproved: NotProved | None = None
    failed: WillNotServe | None = None
    with DeploymentProgress(account.sandbox) as status:
        begun = time.time()
        attempts: list[Attempt] = []
        try:
            found = api.deploy_where_possible(
                found,
                lambda one: api.deploy(aws, one, status.observe, wait, **asdict(choices)),
                fallback,
                attempts,
                status.observe,
            )
        except NotProved as error:
            unproved = error
        except WillNotServe as error:
            failed = error
        except (PeagleError, KeyboardInterrupt):
            show_attempts(attempts)
            left = api.load_record(aws.scope, aws.region, name)
            if left and left.resources:
                cost = api.cost_of_remaining(aws, left)
                show_remaining_resources(left, cost, account, again)
                raise
            if left:
                api.remove_record(left)
            print_status("Nothing was created.")
            raise
        warm = api.reported_warm_start(aws, found, begun) if wait and not failed else None
    show_attempts(attempts)
    if failed:
        raise end_failed_start(aws, name, failed, account, again, remove_failed)
    if warm:
        print_status(warm.text)
    record = api.find_record(name, aws.scope, aws.region)
    document = api.deployment_status(aws, record)
    document["changed"] = found.change in ("create", "update")
    document["changes"] = [change.document() for change in found.changes]
    document["rolled_back"] = isinstance(unproved, RolledBack)
    document["warm_start"] = warm.document() if warm else None
    document["tried"] = attempts_document(attempts)
    if account.sandbox and wait:
        document["not_applied"] = show_not_applied(name, aws.region)
    if as_json:
        print_json(document)
    elif not wait:
        print_status(f"The endpoint was requested. To wait for it and verify acceptance: {again}")
    elif not unproved:
        print_calls(document, found, account)
    if unproved:
        cost = api.cost_of_remaining(aws, record)
        if document["state"] == "InService":  # what served before does
            print_status(f"Costs    {format_price(cost, account.sandbox)}")
        else:
            show_remaining_resources(record, cost, account, again)
        raise unproved


def show_and_refuse(
    found: Preflight, account: Account, choices: ProofChoices = ProofChoices()
) -> None:
    """Show plan, findings and change; raise Refused with the first error."""
    show_plan(found, account, **asdict(choices))
    planned = [f for f in found.desired.plan.findings if f.code not in CHECKED_AGAIN]
    refuse_errors((*planned, *found.findings))


def refuse_unknown_price(plan: Plan, accepted: bool) -> None:
    """Raise Refused for a plan without a known price, unless that is accepted."""
    if plan.price_per_hour_usd is None and not accepted:
        raise Refused(
            f"the price of {plan.instance_type} in {plan.region} is unknown",
            "look up the price, then add --accept-unknown-price",
            code="price-unknown",
        )
