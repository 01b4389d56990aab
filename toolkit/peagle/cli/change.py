"""Changes of a deployment: ``peagle scale``, ``rollback``, ``compare``, ``promote``, ``drop``,
``destroy``, ``reap``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from typing import Any

import click

from peagle.account import DeploymentChange
from peagle.aws.ecr import image_resources, remove_image_resources
from peagle.bench.variants import comparison_report
from peagle.cli import view
from peagle.cli.context import command_text, is_plan_file, is_set
from peagle.cli.options import (
    Parsed,
    command,
    command_catalog,
    complete_pair,
    deploy_options,
    option,
    print_and_refuse,
    yes_option,
)
from peagle.cli.plan import options_in
from peagle.cli.plan_options import planned
from peagle.cli.project import ACCOUNT
from peagle.cli.session import NOT_SEARCHED, Session, account_options, deployment_command
from peagle.cli.view.deploy import AT_PROMOTION, show_candidate, show_changes
from peagle.cli.view.watch import comparison_text, measured, print_comparison_report
from peagle.deploy import apply, comparison, removal, scaling
from peagle.deploy.diff import Change
from peagle.deploy.preflight import Preflight
from peagle.deploy.records import deployment_names
from peagle.deploy.revisions import require_own, required_comparison, stale_resources
from peagle.deploy.state import Deployment, Resource, ResourceName
from peagle.deploy.status import DeploymentStatus, endpoint_created, price_remaining
from peagle.errors import (
    CloudError,
    Fix,
    NotFound,
    NotProved,
    OptionMissing,
    OptionsConflict,
    Refused,
    UserError,
)
from peagle.findings import errors
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_REGION, prefixed_name
from peagle.sandbox.client import SANDBOX_KILLED, sandbox_not_running
from peagle.text import counted, format_price, k_text, parse_share, plain

_DEFAULT_SHARE = 0.1


def _change_and_prove(
    change: DeploymentChange,
    verb: Callable[..., Deployment],
    how: str,
    changes: tuple[Change, ...] | None = None,
) -> None:
    """Run a change that ends with a proof, and print what serves then, ``how``. Raises NotProved
    after that."""
    unproved: NotProved | None = None
    try:
        change.run(verb, command_catalog())
    except NotProved as error:
        unproved = error
    status = change.status()
    view.print_json(plain(status) | ({} if changes is None else {"changes": changes}))
    if unproved:
        raise unproved
    view.print_line(f"{status.name} is {status.state}{measured(status)}", bold=True)
    view.print_line(f"It serves configuration {status.endpoint_config} {how}.")
    price = format_price(status.price_per_hour_usd, change.account.sandbox)
    view.print_facts([("Costs", price)], indent=0, err=False)


@deployment_command(
    "peagle scale peagle-gpt-oss-20b --to 2",
    "peagle scale peagle-gpt-oss-20b --min 2 --max 8",
    "peagle scale peagle-gpt-oss-20b --off --to 1",
)
@option("--to N", "A fixed number.", click.IntRange(1))
@option("--min minimum N", "Fewest that scaling keeps; 0 needs a deployment with "
        "--scale-to-zero.", click.IntRange(0))  # fmt: skip
@option("--max maximum N", "Most that scaling starts; begins to scale automatically.",
        click.IntRange(1))  # fmt: skip
@option("--target-concurrency target", "Requests at a time that scaling gives each.  "
        "[default: the plan's]", "load")  # fmt: skip
@option("--off", "End automatic scaling; what runs stays.", bool)
@yes_option
def scale(name: str, session: Session, **numbers: Any) -> None:
    """Change the number of instances of the deployment NAME, or the bounds of its scaling. Of a
    deployment with --copies, the numbers are those of its copies.

    While it scales automatically, a fixed number is refused. An update keeps the number that
    scaling chose, and replaces a fixed one by that of its plan. With a --budget, a higher price
    moves the end to an earlier time.
    """
    request = scaling.ScaleRequest(**numbers)
    with session.changing(name) as change:
        scaled = scaling.plan_scale(change.aws, change.record, request)
        served, live = change.record.current.served, scaled.live

        def price(count: int) -> str:
            return format_price(served.with_instances(count).usd_per_hour, session.sandbox)

        counts = counted(2, live.hosts_components)
        after = scaled.scaling.after if scaled.scaling else None
        costs = price(scaled.instances or live.desired_count)
        if after is not None:
            costs = f"{price(after.min_instances)}; at most {price(after.max_instances)}"
        is_fixed = scaled.count is not None
        facts = (
            ("where", session.where(change.record.region)),
            (counts, f"{live.engine_count} -> {scaled.count}" if is_fixed else ""),
            ("scaling", scaled.scaling.text if scaled.scaling else ""),
            ("price", costs),
            ("ends", scaled.end_text),
            ("change", "none" if scaled.is_nothing else ""),
        )
        view.print_facts(facts, title=name)
        if not scaled.is_nothing:
            view.confirm("Scale?", "not scaled")
            change.run(scaling.scale, scaled, continues=False)
    of_copies, status = live.hosts_components, change.status()
    desired = live.desired_copies if live.component else live.desired_count
    desired = scaled.count or desired
    changed = {"changed": not scaled.is_nothing, f"{counts}_desired": desired}
    view.print_json(plain(status) | changed)
    running = status.copies_running or 0 if of_copies else status.instances_running
    text = f"{name} runs {running} {counted(running, of_copies)}"
    text += f", on the way to {desired}" if running != desired else ""
    view.print_line(f"{text}; scaling: {after.text}" if after else text, bold=True)


@deployment_command("peagle rollback peagle-tiny --sandbox")
@yes_option
def rollback(name: str, session: Session) -> None:
    """Return the deployment NAME to its previous revision, and prove that again.

    Afterwards the revision that served is the previous one. An update that was interrupted, or is
    in service without a proof, is abandoned: what served before it serves again. Repeat the command
    after an interruption: it continues.
    """
    with session.changing(name) as change:
        record = change.record
        planned = apply.plan_rollback(change.aws, record)
        target = planned.target
        serves = f"configuration {target.name} again"
        view.print_facts((("where", session.where(record.region)), ("serves", serves)), title=name)
        show_changes(planned.changes)
        price = format_price(target.served.usd_per_hour, session.sandbox)
        view.print_facts((("rollout", planned.rollout), ("price", price)))
        view.confirm("Return to this revision?", "not rolled back")
        _change_and_prove(change, apply.rollback, "again", planned.changes)


@deployment_command(
    "peagle sandbox quota set ml.g6.xlarge 3",
    "peagle compare peagle-tiny --with 'tiny --no-speculation' --share 50% --sandbox",
    "peagle compare peagle-gpt-oss-20b --with plan.json --share 10%",
    "peagle compare peagle-gpt-oss-20b",
    keys=(*ACCOUNT, "accept_unknown_price", "role"),
)
@option("--with text PAIR|PLAN", "Serve this too: a plan file, or a pair, with planning "
        "options in quotes, such as 'gpt-oss-20b --k 3'.",
        shell_complete=complete_pair)  # fmt: skip
@option("--share SHARE", "Its share of the requests.  [default: 10%]", Parsed("share", parse_share))
@option("--last", "Report on this time only, such as 1h.  [default: since the "
        "comparison began]", "duration")  # fmt: skip
@deploy_options
@click.pass_context
def compare(
    ctx: click.Context,
    name: str,
    text: str | None,
    share: float | None,
    last: int | None,
    role: str | None,
    accept_unknown_price: bool,
    session: Session,
) -> None:
    """Compare two plans on the endpoint NAME under the requests that it gets.

    With --with, a second production variant serves that plan, on instances of its own and with
    --share of the requests, and is proved. It has everything of the deployed plan that --with does
    not state. Change the share with --share alone. SageMaker starts new instances for both plans
    before it ends those that serve, so the quota must allow them together: 3 where each plan has
    one instance of the same type. Without --with and --share, shows the times, acceptance and cost
    of each variant, with 95 % confidence intervals; no request is sent.

    `peagle promote NAME` lets the second plan serve alone, and `peagle drop NAME` removes it; no
    other change of NAME begins before that. A comparison is not rendered to templates.
    """
    if text is None and share is None:
        record, aws = session.find(name, complete=True)
        return view.print_result(comparison_report(aws, record, last), print_comparison_report)
    if last is not None:
        raise OptionsConflict("--last is for the report only", "omit --with and --share, or --last")
    with session.changing(name) as change:
        running = change.record.comparison
        if text is None:
            before, chosen = required_comparison(change.record).share, share or _DEFAULT_SHARE
            if abs(before - chosen) > 1e-6:
                view.confirm(f"Change the share from {before:.1%} to {chosen:.1%}?", "not changed")
            change.run(comparison.change_share, chosen, continues=False)
        else:
            chosen = share or (running.share if running else _DEFAULT_SHARE)

            def review(preflight: Preflight) -> None:
                record = comparison.require_comparable(preflight)
                show_candidate(preflight, record, chosen, session)
                print_and_refuse(preflight.findings)

            plan = _candidate_plan(ctx, change.record, text)
            print_and_refuse(errors(plan.findings))
            with view.show_hashing():
                preflight = change.prepare(
                    plan, role, accept_unknown_price=accept_unknown_price, as_candidate=True,
                    review=review,
                )  # fmt: skip
            view.confirm("Serve both plans?", "not compared")
            change.run(comparison.start_comparison, preflight, chosen, session.catalog)

    def show(status: DeploymentStatus) -> None:
        price = format_price(status.price_per_hour_usd, session.sandbox)
        view.print_line(f"{name} serves two plans: {comparison_text(status.comparison)}", bold=True)
        commands = (("Report", "compare"), ("Promote", "promote"), ("Drop", "drop"))
        facts = [(label, ("", command_text(("peagle", word, name)))) for label, word in commands]
        view.print_facts([("Price", price), *facts], err=False)

    return view.print_result(change.status(), show)


def _candidate_plan(ctx: click.Context, record: Deployment, text: str) -> Plan:
    """The plan in ``text``, the value of ``--with``. Raises UserError for another name or
    region."""
    pair, options = options_in(ctx, text, "--with")
    if not is_plan_file(pair):
        deployed = (record.serving or record.current).plan
        if deployed is None:
            who = f"another machine deployed {record.name}"
            fix = "name a plan file, or deploy its plan from here first"
            raise UserError(f"{who}: the options of its plan are unknown here", fix, "no-plan")
        pair, options = comparison.candidate_options(
            deployed, (pair, options), command_catalog(ctx)
        )
    plan = planned(ctx, pair, options)
    if (plan.name, plan.region) != (record.name, record.region):
        fix = f"plan it with --name {record.name} --region {record.region}"
        message = f"{text} is for {plan.name} in {plan.region}"
        raise UserError(message, fix, "plan-of-another-deployment")
    return plan


def _end_comparison(
    name: str, session: Session, end: Callable[..., Deployment], question: str, then: str
) -> None:
    """End the comparison with ``end``; after an error, show what exists."""
    with session.changing(name) as change:
        require_own(change.record)
        running = required_comparison(change.record)
        served, share = running.candidate.served, f"{running.share:.1%} of the requests"
        facts = (
            ("where", session.where(change.record.region)),
            ("compared", f"{served.pair}, {k_text(served.k)}, {share}"),
            ("change", "all instances are replaced, then the proof is repeated"),
            ("then", then),
        )
        view.print_facts(facts, title=change.record.name)
        view.confirm(question, "the comparison goes on")
        _change_and_prove(change, end, "alone")


@deployment_command("peagle promote peagle-tiny --sandbox")
@yes_option
def promote(name: str, session: Session) -> None:
    """Let the compared plan of the deployment NAME serve alone, and prove that.

    Its scaling, alarms, dashboard, log retention and end time apply then, as with `peagle deploy`.
    The plan that served is the previous revision then, for `peagle rollback`. Without a proof, it
    serves again, and the comparison has ended. Repeat the command after an interruption.
    """
    then = f"its plan's {AT_PROMOTION} apply"
    _end_comparison(name, session, comparison.promote, "Let this plan serve alone?", then)


@deployment_command("peagle drop peagle-tiny --sandbox", implicit=False)
@yes_option
def drop(name: str, session: Session) -> None:
    """Remove the compared plan of the deployment NAME; what served before serves alone.

    What only the compared plan needs is removed with it. Repeat the command after an interruption.
    """
    _end_comparison(name, session, comparison.drop, "Remove this plan?", "")


_ALIKE = 0.8
"""Names at least this similar (difflib's ratio) are taken for misspelled ones."""


@deployment_command(
    "peagle destroy peagle-gpt-oss-20b --yes",
    "peagle destroy --images",
    instead=("images",),
    implicit=False,
)
@option("--images", "Remove what `peagle image` created, with the images.", bool)
@option("--all everything", "Also remove the log, scaling targets and alarms, and what a "
        "template left.", bool)  # fmt: skip
@option("--previous", "Remove only what the previous revision needs, which then cannot be "
        "returned to.", bool)  # fmt: skip
@yes_option
def destroy(
    session: Session, name: str | None, images: bool, everything: bool, previous: bool
) -> None:
    """Delete the endpoint NAME and everything that deploy created for it; or, with --images, what
    `peagle image` created in the account.

    Also cleans up after a deploy that failed or was interrupted, and may be repeated. An unknown
    name is not an error unless it resembles a known one. Without --all, the log stays.
    """
    if images:
        if name:
            raise OptionsConflict("--images is of no endpoint", "omit NAME, or --images")
        return _destroy_images(session)
    if name is None:
        fix = Fix("list the deployments", ("peagle", "list"))
        raise OptionMissing("NAME or --images is required", fix)
    with ExitStack() as held:
        try:
            change = held.enter_context(session.changing(name))
        except NotFound as unknown:
            here = deployment_names(session.scope) if session.is_available else ()
            is_meant = prefixed_name(name) in here or get_close_matches(name, here, 1, _ALIKE)
            if is_meant or unknown.code in (NOT_SEARCHED, SANDBOX_KILLED):
                raise
            return _destroy_leftovers(session, name, everything)
        if previous:
            return _destroy_previous(change, session)
        return _destroy_deployment(change, session, everything)


def _destroy_deployment(change: DeploymentChange, session: Session, everything: bool) -> None:
    record = change.record
    planned = removal.plan_removal(change.aws, record.name, record, everything)
    cost = format_price(price_remaining(change.aws, record), session.sandbox)
    where = f"{record.name} in {session.where(record.region)}, which costs {cost}:"
    _confirm_removal(where, (*record.resources, *planned.leftovers), unknown=planned.unknown)
    removed, kept = change.run(removal.destroy, planned.leftovers)
    _report(record.name, removed, kept, planned.left)


def _destroy_previous(change: DeploymentChange, session: Session) -> None:
    record = change.record
    if resources := stale_resources(record.model_copy(update={"previous": None})):
        where = f"{record.name} in {session.where(record.region)}:"
        _confirm_removal(where, resources, "Remove the previous revision only?")
    removed = change.run(apply.remove_previous, continues=False)
    if not removed:
        view.print_status(f"Nothing to remove: {record.name} has no previous revision.")
    _report(record.name, removed)


def _destroy_leftovers(session: Session, name: str, everything: bool) -> None:
    planned = removal.Removal()
    reason = "the sandbox is not running, and this machine has no record of it"
    if session.is_available:
        aws = session.aws()
        place = session.where(aws.region)
        reason = f"neither this machine nor the tags in {place} know {name}"
        if endpoint_created(aws, name) is not None:
            message = f"the endpoint {name} in {aws.region} exists, without tags of this toolkit"
            raise Refused(message, "remove it with whatever created it", "endpoint-not-ours")
        planned = removal.plan_removal(aws, name, None, everything)
    if planned.leftovers:
        _confirm_removal(f"Left by {name}:", planned.leftovers, unknown=planned.unknown)
    else:
        view.print_status(f"Nothing to remove: {planned.unknown or reason}.")
    for leftover in planned.leftovers:
        removal.remove_leftover(aws, leftover)
    _report(name, planned.leftovers, left=planned.left)


def _show(title: str, resources: Iterable[Resource]) -> None:
    view.print_status(title)
    for line in dict.fromkeys(resource.text for resource in resources):  # revisions share uploads
        view.print_status(f"  {line}")


def _confirm_removal(
    title: str,
    resources: Iterable[Resource],
    question: str = "Remove all of these?",
    unknown: str = "",
) -> None:
    if unknown:
        view.print_status(f"The log, scaling targets and alarms are unknown: {unknown}")
    if not is_set("yes"):
        _show(title, resources)
        view.confirm(question, "not removed")


def _report(
    name: str,
    removed: Sequence[Resource],
    kept: Sequence[Resource] = (),
    left: Sequence[Resource] = (),
) -> None:
    groups = {"removed": removed, "kept": kept, "left": left}
    names = {
        group: [{"type": resource.type, "name": resource.name} for resource in resources]
        for group, resources in groups.items()
    }
    view.print_json({"name": name, **names})
    _print_removed(removed, kept)
    if left:
        command = command_text(("peagle", "destroy", name, "--all"))
        texts = ", ".join(resource.text for resource in left)
        view.print_status(f"Left: {texts}; to remove this too", command)


def _print_removed(
    removed: Iterable[ResourceName], kept: Iterable[ResourceName], where: str = ""
) -> None:
    for resource in removed:
        view.print_line(f"removed {resource.text}{where}")
    for resource in kept:
        view.print_line(f"kept {resource.text}: in use by others")


def _destroy_images(session: Session) -> None:
    """Remove repositories with their images, CodeBuild projects, roles and build contexts."""
    aws = session.aws(session.region or DEFAULT_REGION)
    resources = image_resources(aws)
    if resources and not is_set("yes"):
        for resource in resources:
            view.print_status(f"  {resource.kind} {resource.name}")
        view.confirm(f"Remove all of these in {aws.region}, including the images?", "not removed")
    removed = remove_image_resources(aws, view.print_status)
    documents = [{"type": resource.kind, "name": resource.name} for resource in removed]
    view.print_json({"removed": documents})
    if not removed:
        view.print_status(f"Nothing to remove: no image of this toolkit is in {aws.region}.")


@command("peagle reap --dry-run")
@account_options
@option("--region regions", "Only this region; may be repeated.  [default: all regions of "
        "SageMaker]", multiple=True)  # fmt: skip
@option("--dry-run", "Show what would be deleted.", bool)
@yes_option
def reap(session: Session, regions: tuple[str, ...], dry_run: bool) -> None:
    """Delete all deployments whose end time (deploy --ttl, --budget) has passed, in all regions.

    EventBridge Scheduler deletes their endpoints; this removes what remains: configuration, model,
    uploaded weights, role and record, and an endpoint that is still there. What a template made is
    left to it. Exits with 4 if a region could not be searched or a deployment not deleted.
    """
    if not session.is_available:
        raise sandbox_not_running()
    search = session.find_ended(regions)
    for ended in (*search.removable, *search.of_others):
        record = ended.record
        price = format_price(ended.price_per_hour_usd, session.sandbox)
        title = f"{record.name} in {session.where(record.region)} ended at {ended.ended_at}"
        title += f", and costs {price}{f'; left to {record.owner}' if record.owner else ''}"
        _show(title, () if record.owner else record.resources)
    for region, error in search.unknown.items():
        view.print_status(f"{region} is unknown: {error.message} ({error.fix})")
    removable = () if dry_run else search.removable
    if removable:
        view.confirm("Delete all of these?", "not deleted")
    done = session.reap(removable)
    failed = [ended for ended in done if ended.error]
    unknown = search.unknown
    document = {
        "dry_run": dry_run,
        "ended": search.removable,
        "reaped": [ended for ended in done if not ended.error],
        "failed": failed,
        "left": search.of_others,
        "unknown": [{"region": name, **unknown[name].document()} for name in unknown],
    }
    view.print_json(document)
    if not search.removable and not unknown:
        view.print_line("Nothing to delete: no deployment is past its end.")
    for ended in done:
        _print_removed(ended.removed, ended.kept, f" ({ended.record.region})")
    for ended in failed:
        names = ", ".join(each.record.name for each in failed)
        fix = Fix("try it alone", ("peagle", "destroy", ended.record.name))
        message = f"not deleted: {names}: {ended.error.message if ended.error else ''}"
        raise CloudError(message, fix, code="not-reaped")
    if search.unknown:
        needs = "see above; the policy infra/iam/deploy-policy.json allows it"
        raise CloudError(f"not searched: {', '.join(search.unknown)}", needs, "regions-unknown")
