"""``peagle deploy``: show the plan, ask, apply it, prove it, and show how to call it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from peagle.aws.client import Aws
from peagle.aws.errors import InsufficientCapacity
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.cli.context import deployment_in_context, is_plan_file, own_command
from peagle.cli.options import (
    command_catalog,
    complete_instance_type,
    deploy_options,
    duration,
    raise_first_error,
    refuse_errors,
)
from peagle.cli.plan_options import plan_options
from peagle.cli.planned import plan_on_type
from peagle.cli.project import ProjectCommand, require_built_image
from peagle.cli.session import Session, account_options
from peagle.cli.view.console import confirm, confirmed, json_option, print_json, print_status
from peagle.cli.view.deploy import (
    add_nothing_remaining,
    print_calls,
    remaining_resources_shown,
    report_serving,
    show_not_applied,
    show_nothing_remains,
    show_plan,
    show_remaining_resources,
)
from peagle.cli.view.progress import DeploymentProgress, show_hashing
from peagle.deploy.apply import Attempt, Fallback, RolledBack, deploy_where_possible
from peagle.deploy.apply import deploy as apply_plan
from peagle.deploy.context import DeploymentContext, WillNotServe
from peagle.deploy.preflight import CHECKED_AGAIN, Preflight
from peagle.deploy.preflight import preflight as run_preflight
from peagle.deploy.records import (
    deployment_lock,
    find_record,
    load_record,
    readable_records,
    remove_record,
)
from peagle.deploy.removal import Saving, possible_saving, remove_failed_start
from peagle.deploy.state import Deployment
from peagle.deploy.status import deployment_status, require_known_price
from peagle.deploy.usage import reported_warm_start
from peagle.engine_log import WarmStart
from peagle.errors import (
    Fix,
    NotProved,
    OptionsConflict,
    PeagleError,
    Refused,
    UserError,
    command_line,
)
from peagle.findings import errors
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.s3uri import BUCKET_NAME, S3Uri
from peagle.sandbox.client import check_sandbox_engine
from peagle.text import format_duration, format_price, format_usd


def end_failed_start(
    aws: Aws,
    name: str,
    error: WillNotServe,
    session: Session,
    again: Sequence[str],
    remove: bool | None,
) -> WillNotServe:
    """Remove what the deploy created, unless the user wants to keep it: ``remove`` is ``None`` for
    a question. Returns the error, which says what was done. ``again`` is the deploy's argv.

    Raises what the removal raises, with what remains shown.
    """
    record = load_record(aws.scope, aws.region, name)
    if record is None:
        return error
    print_status(error.message, bold=True)
    if remove is None:
        remove = sys.stdin.isatty() and _agrees(record, error, session)
    if not remove:
        show_remaining_resources(aws, record, session, again)
        return error
    remaining = remaining_resources_shown(aws, record, session, again)
    with remaining, DeploymentProgress(session.sandbox) as status:
        saving = remove_failed_start(DeploymentContext(aws, record, status.observe), error)
    add_nothing_remaining()
    error.message = f"{error.message}; {_outcome(error, saving, session)}"
    if error.command[:2] == ("peagle", "logs"):  # of an endpoint that is gone
        error.fix, error.command = "deploy with --keep-failed to read its log", ()
    return error


def _agrees(record: Deployment, error: WillNotServe, session: Session) -> bool:
    for resource in record.resources:
        print_status(f"  {resource.text}")
    possible = possible_saving(record, error)
    if possible.seconds:
        goes_on = f"SageMaker keeps trying for up to {_text(possible, session)}."
        print_status(goes_on)
    return confirmed("Remove what will never serve?")


def _outcome(error: WillNotServe, saving: Saving, session: Session) -> str:
    if saving.seconds:
        return f"removed, which saves up to {_text(saving, session)}"
    if error.gives_up is None:
        return "removed"
    return "removed; SageMaker accepted that only when it had given up, so nothing is saved"


def _text(saving: Saving, session: Session) -> str:
    if saving.usd is None:
        return format_duration(saving.seconds)
    where = " on AWS" if session.sandbox else ""
    return f"{format_usd(saving.usd)}{where} ({format_duration(saving.seconds)})"


_OUTCOMES = {
    "deployed": "deployed",
    "no-capacity": "no capacity",
    "refused": "refused",
    "failed": "failed",
}


def _complete_types(ctx: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The last of the types: ``ml.g5.xlarge,ml.g6`` continues with types of g6."""
    before, comma, last = typed.rpartition(",")
    return [before + comma + name for name in complete_instance_type(ctx, parameter, last)]


def fallback_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--fallback-instance-types`` and ``--retry-for``."""
    retry = click.option(
        "--retry-for",
        metavar="DURATION",
        callback=duration,
        help="Keep trying for this time when AWS has no free instance, such as 2h.",
    )
    types = click.option(
        "--fallback-instance-types",
        "fallback_types",
        metavar="TYPE,...",
        help="Instance types to try, in this order, when AWS has no free instance.  "
        "[default: the next of the plan's ranking, after asking]",
        shell_complete=_complete_types,
    )
    return types(retry(command))


def planned_fallbacks(ctx: click.Context, plan: Plan) -> tuple[Plan, ...] | None:
    """The plans on the types of ``--fallback-instance-types``; ``None`` without the option.

    Raises NotFound for an unknown type, UserError with a plan file, and Refused when the checks
    of a plan find an error.
    """
    types = ctx.params["fallback_types"]
    if types is None:
        return None
    if is_plan_file(ctx.params["pair"]):
        raise OptionsConflict(
            "--fallback-instance-types cannot be combined with a plan file",
            "use PAIR and its options, so that a plan can be made for each type",
        )
    names = dict.fromkeys(name.strip() for name in types.split(",") if name.strip())
    if not names:
        raise UserError("--fallback-instance-types names no instance type", "write TYPE,TYPE")
    plans = tuple(plan_on_type(ctx, name) for name in names if name != plan.instance_type)
    for each in plans:
        raise_first_error(each.findings)
    return plans


def show_fallbacks(plans: Sequence[Plan] | None) -> None:
    """Below the plan: what is tried when AWS has no instance of the planned type."""
    if plans:
        types = [_priced(plan.instance_type, plan.price_per_hour_usd) for plan in plans]
        print_status(f"  {'fallback':<12}{', '.join(types)}")


def fallback_of(
    ctx: click.Context,
    plan: Plan,
    fallbacks: Sequence[Plan] | None,
    prepare: Callable[[Plan], Preflight],
) -> Fallback:
    """What deploy does without capacity: the types of the option, else those of the plan's ranking
    if the user agrees. ``prepare`` checks a plan against the account, and shows it."""

    def choose(error: InsufficientCapacity) -> list[str]:
        if fallbacks is not None:
            return [alternative.instance_type for alternative in fallbacks]
        others = [
            alternative
            for alternative in plan.alternatives
            if alternative.instance_type != plan.instance_type
        ]
        if not others or is_plan_file(ctx.params["pair"]):
            return []
        names = ",".join(alternative.instance_type for alternative in others)
        if not error.command:
            error.fix += "; to try the next types of the ranking, add "
            error.fix += f"--fallback-instance-types {names}"
        if ctx.params["yes"]:
            return []
        types = ", ".join(
            _priced(alternative.instance_type, alternative.price_per_hour_usd)
            for alternative in others
        )
        print_status(f"AWS has no free {plan.instance_type} now.")
        try:
            agreed = confirmed(f"Try {types} instead?", Fix(""))
        except UserError:  # no terminal: nobody to ask
            return []
        return [alternative.instance_type for alternative in others] if agreed else []

    def planned(instance_type: str) -> Preflight:
        if instance_type == plan.instance_type:
            return prepare(plan)
        return prepare(plan_on_type(ctx, instance_type))

    return Fallback(choose, planned, ctx.params["retry_for"] or 0.0)


def show_attempts(attempts: Sequence[Attempt]) -> None:
    """What was tried, for how long, and what each costs; nothing after a single attempt that
    needed no other."""
    if len(attempts) < 2:
        return
    print_status("Tried:")
    width = max(len(attempt.instance_type) for attempt in attempts)
    for attempt in attempts:
        price = _price(attempt.price_per_hour_usd)
        outcome = f"{_OUTCOMES[attempt.outcome]} after {format_duration(attempt.seconds)}"
        print_status(f"  {attempt.instance_type:<{width}}  {price:<18}{outcome}")


def _priced(instance_type: str, usd_per_hour: float | None) -> str:
    return f"{instance_type} ({_price(usd_per_hour)})"


def _price(usd_per_hour: float | None) -> str:
    return "price unknown" if usd_per_hour is None else f"{format_usd(usd_per_hour)} an hour"


_NOT_REPEATED = ("--yes", "-y", "--no-wait", "--keep-failed", "--json")
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
    session: Session,
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
    if session.sandbox:
        check_sandbox_engine()
    started, aws = session.start_and_connect(plan.region)
    instances = command_catalog(ctx).instances

    def checked(plan: Plan) -> Preflight:
        with show_hashing():
            preflight = run_preflight(aws, plan, instances, role, bucket)
        show_and_refuse(preflight, session, keep_unproved)
        if preflight.change in _CHANGES:
            require_known_price(preflight.desired.plan, accept_unknown_price)
        return preflight

    with deployment_lock(aws.scope, plan.region, plan.name):
        with session.stopped_on_error(started):
            preflight = checked(plan)
            _refuse_second(ctx, aws, preflight, yes)
            _confirm(preflight, others, yes)
        _Deploy(
            aws,
            session,
            keep_unproved,
            fallback_of(ctx, plan, others, checked),
            wait=not no_wait,
            again=own_command(ctx, without=_NOT_REPEATED),
            remove_failed=False if keep_failed else (yes or None),
            as_json=as_json,
        ).run(preflight)


def _check_bucket(bucket: str | None) -> None:
    """Raise UserError for a name that S3 does not accept, before anything is created."""
    if bucket is not None and not S3Uri(bucket).has_bucket_name:
        message = f"--bucket {bucket[:80]!r} cannot be the name of a bucket"
        raise UserError(message, f"use {BUCKET_NAME}", "invalid-bucket")


def _refuse_second(ctx: click.Context, aws: Aws, preflight: Preflight, yes: bool) -> None:
    """A new endpoint whose name the user did not choose, of a target that has one already: with
    --yes, raise Refused before a second price is paid; else the question says so."""
    plan = preflight.desired.plan
    is_file = is_plan_file(ctx.params["pair"])
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


def _confirm(preflight: Preflight, others: Sequence[Plan] | None, yes: bool) -> None:
    """Show what is deployed if the first plan finds no instances, and ask, if anything changes."""
    if preflight.change not in _CHANGES and preflight.scaling is None:
        return
    show_fallbacks(others)
    if not yes:
        confirm(_CHANGES.get(preflight.change, _CHANGES["scale"]), "not deployed", _PASS_YES)


@dataclass(frozen=True)
class _Deploy:
    """A deploy after the confirmation.

    ``again`` is the argv that continues it; ``remove_failed``: remove an endpoint that will
    never serve, ``None`` to ask.
    """

    aws: Aws
    session: Session
    keep_unproved: bool
    fallback: Fallback
    wait: bool
    again: Sequence[str]
    remove_failed: bool | None
    as_json: bool

    def run(self, preflight: Preflight) -> None:
        """Apply, prove and report; if something ends it early, show what exists."""
        error: NotProved | WillNotServe | None = None
        warm: WarmStart | None = None
        attempts: list[Attempt] = []
        with DeploymentProgress(self.session.sandbox) as status:
            begun = time.time()
            try:
                preflight = deploy_where_possible(
                    preflight,
                    lambda preflight: apply_plan(
                        self.aws,
                        preflight,
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
                self._show_what_exists(preflight.desired.plan.name)
                raise
            if self.wait and not isinstance(error, WillNotServe):
                warm = reported_warm_start(self.aws, preflight, begun)
        show_attempts(attempts)
        if isinstance(error, WillNotServe):
            name = preflight.desired.plan.name
            raise end_failed_start(
                self.aws, name, error, self.session, self.again, self.remove_failed
            )
        record = find_record(preflight.desired.plan.name, self.aws.scope, self.aws.region)
        state = self._report(record, preflight, attempts, warm, error)
        if error and state == "InService":  # what served before does
            report_serving(self.aws, record, self.session)
        elif error:
            show_remaining_resources(self.aws, record, self.session, self.again)
        if error:
            raise error

    def _show_what_exists(self, name: str) -> None:
        """After an error; a record without resources is removed."""
        left = load_record(self.aws.scope, self.aws.region, name)
        if left and left.resources:
            show_remaining_resources(self.aws, left, self.session, self.again)
            return
        if left:
            remove_record(left)
        show_nothing_remains()

    def _report(
        self,
        record: Deployment,
        preflight: Preflight,
        attempts: list[Attempt],
        warm: WarmStart | None,
        unproved: NotProved | None,
    ) -> str:
        """Print what is deployed, and how to call it if it is proved. Returns its state."""
        if warm:
            print_status(warm.text)
        document = deployment_status(self.aws, record) | {
            "changed": preflight.change in _CHANGES or bool(preflight.changes),
            "changes": [change.document() for change in preflight.changes],
            "rolled_back": isinstance(unproved, RolledBack),
            "warm_start": warm.document() if warm else None,
            "tried": [attempt.document() for attempt in attempts],
            "licences": licences_document(preflight.desired.plan),
            "pins": preflight.desired.plan.pins.model_dump(mode="json"),
        }
        if self.session.sandbox and self.wait:
            document["not_applied"] = show_not_applied(record.name, self.aws.region)
        if self.as_json:
            print_json(deployment_in_context(document))
        elif not self.wait:
            requested = "The endpoint was requested. To wait for it and verify acceptance"
            print_status(requested, command_line(self.again))
        elif not unproved:
            print_calls(document, preflight, self.session)
        return str(document["state"])


def licences_document(plan: Plan) -> dict[str, str | None]:
    """The licences of target and drafter; ``None`` where unknown, or without a drafter."""
    drafter = plan.drafter
    return {"target": plan.target.licence or None, "drafter": drafter.licence if drafter else None}


def show_and_refuse(preflight: Preflight, session: Session, keep_unproved: bool = False) -> None:
    """Show plan, findings and change; raise Refused with the first error. The plan's notes are what
    `peagle plan --verbose` shows."""
    show_plan(preflight, session, keep_unproved)
    omitted = CHECKED_AGAIN | NOT_IN_SANDBOX if session.sandbox else CHECKED_AGAIN
    planned = preflight.desired.plan.findings
    planned = tuple(f for f in planned if f.level != "note" and f.code not in omitted)
    refuse_errors((*planned, *preflight.findings))
