"""``peagle deploy``: show the plan, ask, apply it, prove it, and show how to call it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from peagle import api
from peagle.aws.client import Aws
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.cli.account import Account, account_options
from peagle.cli.context import TYPED, deployment_in_context, is_plan_file, typed_command
from peagle.cli.failed_start import end_failed_start
from peagle.cli.fallback import (
    fallback_of,
    fallback_options,
    planned_fallbacks,
    show_attempts,
    show_fallbacks,
)
from peagle.cli.options import command_catalog, deploy_options, refuse_errors
from peagle.cli.output.console import confirm, json_option, print_json, print_status
from peagle.cli.output.deploy import (
    print_calls,
    report_serving,
    show_not_applied,
    show_nothing_remains,
    show_plan,
    show_remaining_resources,
)
from peagle.cli.output.progress import DeploymentProgress, show_hashing
from peagle.cli.plan_options import plan_options
from peagle.cli.project import ProjectCommand, require_built_image
from peagle.deploy.apply import RolledBack
from peagle.deploy.fallback import Attempt, Fallback
from peagle.deploy.preflight import CHECKED_AGAIN, Preflight
from peagle.deploy.records import readable_records
from peagle.deploy.state import Deployment
from peagle.deploy.wait import WillNotServe
from peagle.engine_log import WarmStart
from peagle.errors import (
    Fix,
    NotProved,
    PeagleError,
    Refused,
    UserError,
    command_line,
)
from peagle.findings import errors
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.s3uri import BUCKET_NAME, S3Uri
from peagle.text import format_price

_NOT_REPEATED = ("--yes", "--no-wait", "--keep-failed", "--json")
"""Options of this command that the command to continue with omits."""

_CHANGES = {
    "create": "Deploy this plan?",
    "scale": "Change the scaling of the endpoint?",
    "update": "Update the endpoint to this plan?",
}
"""The changes that need a confirmation, and its question."""

_PASS_YES = Fix("review the plan above, then pass --yes", options=("--yes",))


@click.command(
    cls=ProjectCommand,
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
    _check_bucket(bucket)
    if errors(plan.findings):
        refuse_errors(plan.findings)
    require_built_image(ctx)
    others = planned_fallbacks(ctx, plan)
    if account.sandbox:
        api.check_sandbox_engine()
    started, aws = account.start_and_connect(plan.region)
    instances = command_catalog(ctx).instances

    def checked(plan: Plan) -> Preflight:
        with show_hashing():
            found = api.preflight(aws, plan, instances, role, bucket)
        show_and_refuse(found, account, keep_unproved)
        if found.change in _CHANGES:
            api.require_known_price(found.desired.plan, accept_unknown_price)
        return found

    with api.deployment_lock(aws.scope, plan.region, plan.name):
        with account.stopped_on_error(started):
            found = checked(plan)
            _refuse_second(ctx, aws, found, yes)
            _confirm(found, others, yes)
        _Deploy(
            aws,
            account,
            keep_unproved,
            fallback_of(ctx, plan, others, checked),
            wait=not no_wait,
            again=typed_command(ctx, "deploy", without=_NOT_REPEATED),
            remove_failed=False if keep_failed else (yes or None),
            as_json=as_json,
        ).run(found)


def _check_bucket(bucket: str | None) -> None:
    """Raise UserError for a name that S3 does not accept, before anything is created."""
    if bucket is not None and not S3Uri(bucket).has_bucket_name:
        message = f"--bucket {bucket[:80]!r} cannot be the name of a bucket"
        raise UserError(message, f"use {BUCKET_NAME}", "invalid-bucket")


def _refuse_second(ctx: click.Context, aws: Aws, preflight: Preflight, yes: bool) -> None:
    """A new endpoint whose name the user did not choose, of a target that has one already: with
    --yes, raise Refused before a second price is paid; else the question says so."""
    plan, pair = preflight.desired.plan, ctx.meta[TYPED].get("pair")
    is_file = isinstance(pair, str) and is_plan_file(pair)
    if preflight.change != "create" or ctx.params.get("name") or is_file:
        return
    prefix = ctx.params.get("name_prefix") or DEFAULT_PREFIX
    records, _ = readable_records(aws.scope)
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
    if yes:
        raise Refused(
            f"{message}, at {format_price(plan.price_per_hour_usd, aws.in_sandbox)}",
            f"add --name {names[0]} to update it, or --name {plan.name} for a second one",
            code="second-endpoint",
        )
    print_status(f"{message}. To update it instead, add --name {names[0]}.")


def _confirm(found: Preflight, others: Sequence[Plan] | None, yes: bool) -> None:
    """Show what is deployed if the first plan finds no instances, and ask, if anything changes."""
    if found.change not in _CHANGES and found.scaling is None:
        return
    show_fallbacks(others)
    if not yes:
        confirm(_CHANGES.get(found.change, _CHANGES["scale"]), "not deployed", _PASS_YES)


@dataclass(frozen=True)
class _Deploy:
    """A deploy after the confirmation.

    ``again`` is the argv that continues it; ``remove_failed``: remove an endpoint that will
    never serve, ``None`` to ask.
    """

    aws: Aws
    account: Account
    keep_unproved: bool
    fallback: Fallback
    wait: bool
    again: Sequence[str]
    remove_failed: bool | None
    as_json: bool

    def run(self, found: Preflight) -> None:
        """Apply, prove and report; if something ends it early, show what exists."""
        error: NotProved | WillNotServe | None = None
        warm: WarmStart | None = None
        attempts: list[Attempt] = []
        with DeploymentProgress(self.account.sandbox) as status:
            begun = time.time()
            try:
                found = api.deploy_where_possible(
                    found,
                    lambda checked: api.deploy(
                        self.aws,
                        checked,
                        status.observe,
                        self.wait,
                        keep_unproved=self.keep_unproved,
                    ),
                    self.fallback,
                    attempts,
                    status.observe,
                )
            except (NotProved, WillNotServe) as ended:
                error = ended
            except (PeagleError, KeyboardInterrupt):
                status.clear()
                show_attempts(attempts)
                self._show_what_exists(found.desired.plan.name)
                raise
            if self.wait and not isinstance(error, WillNotServe):
                warm = api.reported_warm_start(self.aws, found, begun)
        show_attempts(attempts)
        if isinstance(error, WillNotServe):
            name = found.desired.plan.name
            raise end_failed_start(
                self.aws, name, error, self.account, self.again, self.remove_failed
            )
        record = api.find_record(found.desired.plan.name, self.aws.scope, self.aws.region)
        state = self._report(record, found, attempts, warm, error)
        if error and state == "InService":  # what served before does
            report_serving(self.aws, record, self.account)
        elif error:
            show_remaining_resources(self.aws, record, self.account, self.again)
        if error:
            raise error

    def _show_what_exists(self, name: str) -> None:
        """After an error; a record without resources is removed."""
        left = api.load_record(self.aws.scope, self.aws.region, name)
        if left and left.resources:
            show_remaining_resources(self.aws, left, self.account, self.again)
            return
        if left:
            api.remove_record(left)
        show_nothing_remains()

    def _report(
        self,
        record: Deployment,
        found: Preflight,
        attempts: list[Attempt],
        warm: WarmStart | None,
        unproved: NotProved | None,
    ) -> str:
        """Print what is deployed, and how to call it if it is proved. Returns its state."""
        if warm:
            print_status(warm.text)
        document = api.deployment_status(self.aws, record) | {
            "changed": found.change in _CHANGES or bool(found.changes),
            "changes": [change.document() for change in found.changes],
            "rolled_back": isinstance(unproved, RolledBack),
            "warm_start": warm.document() if warm else None,
            "tried": [one.document() for one in attempts],
            "licences": licences_document(found.desired.plan),
            "pins": found.desired.plan.pins.model_dump(mode="json"),
        }
        if self.account.sandbox and self.wait:
            document["not_applied"] = show_not_applied(record.name, self.aws.region)
        if self.as_json:
            print_json(deployment_in_context(document))
        elif not self.wait:
            requested = "The endpoint was requested. To wait for it and verify acceptance"
            print_status(requested, command_line(self.again))
        elif not unproved:
            print_calls(document, found, self.account)
        return str(document["state"])


def licences_document(plan: Plan) -> dict[str, str | None]:
    """The licences of target and drafter; ``None`` where unknown, or without a drafter."""
    drafter = plan.drafter
    return {"target": plan.target.licence or None, "drafter": drafter.licence if drafter else None}


def show_and_refuse(found: Preflight, account: Account, keep_unproved: bool = False) -> None:
    """Show plan, findings and change; raise Refused with the first error. The plan's notes are what
    `peagle plan --verbose` shows."""
    show_plan(found, account, keep_unproved)
    omitted = CHECKED_AGAIN | NOT_IN_SANDBOX if account.sandbox else CHECKED_AGAIN
    planned = found.desired.plan.findings
    planned = tuple(f for f in planned if f.level != "note" and f.code not in omitted)
    refuse_errors((*planned, *found.findings))
