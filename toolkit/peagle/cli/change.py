"""Changes of a deployment: ``peagle scale``, ``rollback``, ``compare``, ``promote``, ``drop``,
``destroy`` and ``reap``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from typing import Any

import click

from peagle.account import Change, default_region, remove_with_leftovers
from peagle.aws.client import Aws
from peagle.aws.ecr import image_resources, remove_image_resources
from peagle.aws.errors import AccessDenied
from peagle.aws.regions import hosting_regions
from peagle.bench.variants import comparison_report
from peagle.cli.context import (
    PeagleCommand,
    command_text,
    in_context,
    is_plan_file,
    own_command,
    status_in_context,
)
from peagle.cli.options import (
    POSITIVE,
    Parsed,
    add_options,
    command_catalog,
    complete_pair,
    complete_region,
    deploy_options,
    duration,
    refuse_errors,
    yes_option,
)
from peagle.cli.plan import options_in
from peagle.cli.plan_options import planned
from peagle.cli.project import ACCOUNT
from peagle.cli.session import (
    NOT_SEARCHED,
    Session,
    account_options,
    deployment_command,
    examples_text,
)
from peagle.cli.view.console import (
    confirm,
    json_option,
    print_facts,
    print_json,
    print_line,
    print_status,
    show_hashing,
)
from peagle.cli.view.deploy import (
    AT_PROMOTION,
    comparison_text,
    measured,
    print_comparison_report,
    show_candidate,
    show_changes,
)
from peagle.deploy.apply import preview_rollback, remove_previous, revision_for_rollback
from peagle.deploy.apply import rollback as roll_back
from peagle.deploy.comparison import (
    change_share,
    options_beside,
    require_comparable,
    start_comparison,
)
from peagle.deploy.comparison import drop as drop_candidate
from peagle.deploy.comparison import promote as promote_candidate
from peagle.deploy.diff import Change as Setting
from peagle.deploy.preflight import preflight as run_preflight
from peagle.deploy.records import deployment_names, load_record
from peagle.deploy.removal import (
    Reaped,
    find_ended,
    find_leftovers,
    goes_with_endpoint,
    remove_leftover,
)
from peagle.deploy.removal import reap as remove_ended
from peagle.deploy.revisions import require_own, required_comparison, stale_resources
from peagle.deploy.scaling import ScaleRequest, plan_scale
from peagle.deploy.scaling import scale as apply_scale
from peagle.deploy.state import Deployment, Resource, ResourceName
from peagle.deploy.status import (
    DeploymentStatus,
    deployment_status,
    endpoint_created,
    price_remaining,
    require_known_price,
)
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
from peagle.options import Result
from peagle.planning import Plan
from peagle.planning.runtime import DEFAULT_REGION
from peagle.sandbox.client import SANDBOX_KILLED, sandbox_not_running
from peagle.store import SANDBOX
from peagle.text import counted, format_price, k_text, parse_share

_DEFAULT_SHARE = 0.1


class ChangedStatus(DeploymentStatus):
    """A deployment after a change of it; of its other keys a command has those that it sets."""

    changed: bool | None = None
    changes: tuple[Setting, ...] | None = None
    instances_desired: int | None = None
    copies_desired: int | None = None


def _status(aws: Aws, record: Deployment, **changed: Any) -> ChangedStatus:
    status = status_in_context(deployment_status(aws, record))
    return ChangedStatus(**dict(status), **changed)


def _change_and_prove(
    ctx: click.Context,
    change: Change,
    verb: Callable[..., Deployment],
    how: str,
    changes: tuple[Setting, ...] | None = None,
) -> None:
    """Run a change that ends with a proof, and print what serves then, ``how``. Raises NotProved
    after that."""
    name, session, unproved = change.record.name, change.account, None
    try:
        again = in_context(("peagle", ctx.command.name or "", name))
        change.run(verb, command_catalog(ctx), again=again)
    except NotProved as error:
        unproved = error
    record = load_record(*change.record.key) or change.record
    status = _status(change.aws, record, changes=changes)
    if ctx.params["as_json"]:
        print_json(status)
    elif not unproved:
        print_line(f"{name} is {status.state}{measured(status)}", bold=True)
        print_line(f"It serves configuration {status.endpoint_config} {how}.")
        price = format_price(status.price_per_hour_usd, session.sandbox)
        print_status(f"Costs    {price}")
    if unproved:
        raise unproved


_SCALE_OPTIONS = (
    click.Option(["--to"], type=click.IntRange(1), metavar="N", help="A fixed number."),
    click.Option(["--min", "minimum"], type=click.IntRange(0), metavar="N",
                 help="Fewest that scaling keeps; 0 needs a deployment with --scale-to-zero."),
    click.Option(["--max", "maximum"], type=click.IntRange(1), metavar="N",
                 help="Most that scaling starts; begins to scale automatically."),
    click.Option(["--target-concurrency", "target"], type=POSITIVE, metavar="REQUESTS",
                 help="Requests at a time that scaling gives each.  [default: the plan's]"),
    click.Option(["--off"], is_flag=True, help="End automatic scaling; what runs stays."),
)  # fmt: skip


@deployment_command(
    "peagle scale peagle-gpt-oss-20b --to 2",
    "peagle scale peagle-gpt-oss-20b --min 2 --max 8",
    "peagle scale peagle-gpt-oss-20b --off --to 1",
    yes=True,
)
@add_options(_SCALE_OPTIONS)
def scale(
    name: str,
    session: Session,
    to: int | None,
    minimum: int | None,
    maximum: int | None,
    target: float | None,
    off: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Change the number of instances of the deployment NAME, or the bounds of its scaling. Of a
    deployment with --copies, the numbers are those of its copies.

    While it scales automatically, SageMaker chooses the number within the bounds, and a fixed
    number is refused. An update keeps the number that scaling chose, and replaces a fixed one by
    that of its plan; deploying a plan with other bounds changes those. With a --budget, a higher
    price moves the end to an earlier time.
    """
    request = ScaleRequest(to, minimum, maximum, target, off)
    with session.changing(name) as change:
        scaling = plan_scale(change.aws, change.record, request)
        served, live = change.record.current.served, scaling.live

        def price(count: int) -> str:
            return format_price(served.with_instances(count).usd_per_hour, session.sandbox)

        counts = counted(2, live.hosts_components)
        after = scaling.scaling.after if scaling.scaling else None
        costs = price(scaling.instances or live.desired_count)
        if after is not None:
            costs = f"{price(after.min_instances)}; at most {price(after.max_instances)}"
        is_fixed = scaling.count is not None
        print_status(name, bold=True)
        print_facts(
            (
                ("where", session.where(change.record.region)),
                (counts, f"{live.engine_count} -> {scaling.count}" if is_fixed else ""),
                ("scaling", scaling.scaling.text if scaling.scaling else ""),
                ("price", costs),
                ("ends", scaling.end_text),
                ("change", "none" if scaling.is_nothing else ""),
            )
        )
        if not scaling.is_nothing:
            confirm("Scale?", "not scaled", yes=yes)
            change.run(apply_scale, scaling)
    component = live.component
    desired = scaling.count or (component.desired_copies if component else live.desired_count)
    changed = {"changed": not scaling.is_nothing, f"{counts}_desired": desired}
    status = _status(change.aws, change.record, **changed)
    if as_json:
        return print_json(status)
    running = status.instances_running
    if live.hosts_components:
        running = status.copies_running or 0
    text = f"{name} runs {running} {counted(running, live.hosts_components)}"
    if running != desired:
        text += f", on the way to {desired}"
    return print_line(f"{text}; scaling: {after.text}" if after else text, bold=True)


@deployment_command(
    "peagle rollback peagle-tiny --sandbox",
    "peagle rollback peagle-gpt-oss-20b --yes --json",
    yes=True,
)
@click.pass_context
def rollback(ctx: click.Context, /, name: str, session: Session, yes: bool, **_: Any) -> None:
    """Return the deployment NAME to its previous revision, and prove that again.

    Afterwards the revision that served is the previous one. An update that was interrupted, or is
    in service without a proof, is abandoned: what served before it serves again. Repeat the command
    after an interruption: it continues.
    """
    with session.changing(name) as change:
        record = change.record
        target = revision_for_rollback(record)
        changes, rollout = preview_rollback(change.aws, record, target)
        print_status(name, bold=True)
        serves = f"configuration {target.name} again"
        print_facts((("where", session.where(record.region)), ("serves", serves)))
        show_changes(changes)
        price = format_price(target.served.usd_per_hour, session.sandbox)
        print_facts((("rollout", rollout), ("price", price)))
        confirm("Return to this revision?", "not rolled back", yes=yes)
        _change_and_prove(ctx, change, roll_back, "again", changes)


_COMPARE_OPTIONS = (
    click.Option(["--with", "text"], metavar="PAIR|PLAN",
                 help="Serve this too: a plan file, or a pair, with planning options in quotes, "
                 "such as 'gpt-oss-20b --k 3'.", shell_complete=complete_pair),
    click.Option(["--share"], type=Parsed("share", parse_share), metavar="SHARE",
                 help="Its share of the requests.  [default: 10%]"),
    click.Option(["--last"], callback=duration, metavar="DURATION",
                 help="Report on this time only, such as 1h.  [default: since the comparison "
                 "began]"),
)  # fmt: skip


@deployment_command(
    "peagle sandbox quota set ml.g6.xlarge 3",
    "peagle compare peagle-tiny --with 'tiny --no-speculation' --share 50% --sandbox",
    "peagle compare peagle-gpt-oss-20b --with plan.json --share 10%",
    "peagle compare peagle-gpt-oss-20b",
    keys=(*ACCOUNT, "accept_unknown_price", "role"),
)
@add_options(_COMPARE_OPTIONS)
@deploy_options
@click.pass_context
def compare(
    ctx: click.Context,
    name: str,
    text: str | None,
    share: float | None,
    last: int | None,
    role: str | None,
    yes: bool,
    accept_unknown_price: bool,
    session: Session,
    as_json: bool,
) -> None:
    """Compare two plans on the endpoint NAME under the requests that it gets.

    With --with, a second production variant serves that plan, on instances of its own and with
    --share of the requests, and is proved. It has everything of the deployed plan that --with does
    not state: drafter, K, context, image, instances, network, tags and the rest. Repeat it to
    change the share, or change it with --share alone. SageMaker starts new instances for both plans
    before it ends those that serve, so the quota must allow them together: 3 where each plan has
    one instance of the same type. Without --with and --share, shows the times, acceptance and cost
    of each variant, and 95 % confidence intervals, from CloudWatch and from the engines' logs: no
    request is sent.

    `peagle promote NAME` lets the second plan serve alone, and `peagle drop NAME` removes it; no
    other change of NAME begins before that. A comparison is not rendered to templates.
    """
    if text is None and share is None:
        record, aws = session.find(name, complete=True)
        report = comparison_report(aws, record, last)
        if as_json:
            print_json(report)
        else:
            print_comparison_report(report)
        return
    if last is not None:
        raise OptionsConflict("--last is for the report only", "omit --with and --share, or --last")
    with session.changing(name) as change:
        running = change.record.comparison
        if text is None:
            before, chosen = required_comparison(change.record).share, share or _DEFAULT_SHARE
            if not yes and abs(before - chosen) > 1e-6:
                confirm(f"Change the share from {before:.1%} to {chosen:.1%}?", "not changed")
            change.run(change_share, chosen)
        else:
            plan = _candidate_plan(ctx, change.record, text)
            refuse_errors([finding for finding in plan.findings if finding.level == "error"])
            with show_hashing():
                preflight = run_preflight(
                    change.aws, plan, session.catalog.instances, role, beside=True
                )
            record = require_comparable(preflight)
            chosen = share or (running.share if running else _DEFAULT_SHARE)
            show_candidate(change.aws, preflight, record, chosen, session)
            refuse_errors(preflight.findings)
            require_known_price(preflight.desired.plan, accept_unknown_price)
            fix = Fix("review the above, then pass --yes", options=("--yes",))
            confirm("Serve both plans?", "not compared", fix, yes)
            Change(session, change.aws, record).run(
                lambda context: start_comparison(context, preflight, chosen, session.catalog),
                again=own_command(ctx),
            )
    record = load_record(*change.record.key) or change.record
    status = status_in_context(deployment_status(change.aws, record))
    if as_json:
        print_json(status)
    else:
        price = format_price(status.price_per_hour_usd, session.sandbox)
        print_line(f"{name} serves two plans: {comparison_text(status.comparison)}", bold=True)
        commands = (("Report", "compare"), ("Promote", "promote"), ("Drop", "drop"))
        facts = [(label, ("", command_text(("peagle", word, name)))) for label, word in commands]
        print_facts([("Price", price), *facts], label=9, err=False)


def _candidate_plan(ctx: click.Context, record: Deployment, text: str) -> Plan:
    """The plan in ``text``, the value of ``--with``. Raises UserError for another name or
    region."""
    pair, options = options_in(ctx, text, "--with")
    place = {"name": record.name, "region": record.region}
    for option in place.keys() & options.keys():
        if options[option] != place[option]:
            message = f"--{option} {options[option]} within --with is not that of {record.name}"
            raise UserError(message, f"omit --{option}")
    if is_plan_file(pair):
        plan = planned(ctx, pair, options)
        if {"name": plan.name, "region": plan.region} != place:
            raise UserError(
                f"{pair} is for {plan.name} in {plan.region}",
                f"plan it with --name {record.name} --region {record.region}",
                code="plan-of-another-deployment",
            )
        return plan
    revision = record.serving or record.current
    catalog = command_catalog(ctx)
    if revision.plan is None:
        raise UserError(
            f"another machine deployed {record.name}: the options of its plan are unknown here",
            "name a plan file, or deploy its plan from here first",
            code="no-plan",
        )
    return planned(ctx, *options_beside(revision.plan, (pair, options), catalog))


def _end_comparison(
    ctx: click.Context, session: Session, end: Callable[..., Deployment], question: str, then: str
) -> None:
    """End the comparison with ``end``; after an error, show what exists."""
    with session.changing(ctx.params["name"]) as change:
        require_own(change.record)
        comparison = required_comparison(change.record)
        served, share = comparison.candidate.served, f"{comparison.share:.1%} of the requests"
        print_status(change.record.name, bold=True)
        print_facts(
            (
                ("where", session.where(change.record.region)),
                ("compared", f"{served.pair}, {k_text(served.k)}, {share}"),
                ("change", "all instances are replaced, then the proof is repeated"),
                ("then", then),
            )
        )
        confirm(question, "the comparison goes on", yes=ctx.params["yes"])
        _change_and_prove(ctx, change, end, "alone")


@deployment_command(
    "peagle promote peagle-tiny --sandbox",
    "peagle promote peagle-gpt-oss-20b --yes --json",
    yes=True,
)
@click.pass_context
def promote(ctx: click.Context, /, session: Session, **_: Any) -> None:
    """Let the compared plan of the deployment NAME serve alone, and prove that.

    Its scaling, alarms, dashboard, log retention and end time apply then, as with `peagle deploy`.
    The plan that served is the previous revision then, for `peagle rollback`. Without a proof, it
    serves again, and the comparison has ended. Repeat the command after an interruption.
    """
    then = f"its plan's {AT_PROMOTION} apply"
    _end_comparison(ctx, session, promote_candidate, "Let this plan serve alone?", then)


@deployment_command(
    "peagle drop peagle-tiny --sandbox",
    "peagle drop peagle-gpt-oss-20b --yes --json",
    yes=True,
    implicit=False,
)
@click.pass_context
def drop(ctx: click.Context, /, session: Session, **_: Any) -> None:
    """Remove the compared plan of the deployment NAME; what served before serves alone.

    What only the compared plan needs is removed with it. Repeat the command after an interruption.
    """
    _end_comparison(ctx, session, drop_candidate, "Remove this plan?", "")


_ALIKE = 0.8
"""Names at least this similar (difflib's ratio) are taken for misspelled ones."""


@deployment_command(
    "peagle destroy peagle-gpt-oss-20b --yes",
    "peagle destroy --images",
    yes=True,
    instead=("images",),
    implicit=False,
)
@click.option("--images", is_flag=True, help="Remove what `peagle image` created, with the images.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also remove the log, scaling targets and alarms, and what a template left.",
)
@click.option(
    "--previous",
    is_flag=True,
    help="Remove only what the previous revision needs, which then cannot be returned to.",
)
def destroy(
    session: Session,
    name: str | None,
    images: bool,
    everything: bool,
    previous: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the endpoint NAME and everything that deploy created for it; or, with --images, what
    `peagle image` created in the account.

    Also cleans up after a deploy that failed or was interrupted, and may be repeated. An unknown
    name is not an error unless it resembles a known one. Without --all, the log stays.
    """
    if images:
        if name or previous:
            raise OptionsConflict(
                "NAME and --previous do not go with --images", "omit --images, or the others"
            )
        return _destroy_images(session, yes, as_json)
    if name is None:
        raise OptionMissing(
            "NAME or --images is required", Fix("list the deployments", ("peagle", "list"))
        )
    with ExitStack() as held:
        try:
            change = held.enter_context(session.changing(name))
        except NotFound as unknown:
            here = deployment_names(session.scope) if session.is_available else ()
            elsewhere = deployment_names(None if session.sandbox else SANDBOX)
            is_misspelled = get_close_matches(name, here, n=1, cutoff=_ALIKE) or name in elsewhere
            if is_misspelled or unknown.code in (NOT_SEARCHED, SANDBOX_KILLED):
                raise
            return _destroy_leftovers(session, name, session.region, everything, yes, as_json)
        if not previous:
            return _destroy_deployment(change, session, everything, yes, as_json)
        resources = stale_resources(change.record.model_copy(update={"previous": None}))
        if resources:
            where = f"{name} in {session.where(change.record.region)}:"
            _confirm_removal(where, resources, yes, "Remove the previous revision only?")
        removed = change.run(remove_previous)
        if not removed and not as_json:
            print_status(f"Nothing to remove: {name} has no previous revision.")
        return _report(name, as_json, removed)


def _destroy_deployment(
    change: Change, session: Session, everything: bool, yes: bool, as_json: bool
) -> None:
    record, aws = change.record, change.aws
    if record.of_type("Endpoint") or not record.owner:
        require_own(record)
    elif not everything:  # what a template left without its endpoint
        raise Refused(
            f"{_texts(record.resources)}: left by {record.owner}",
            Fix("remove this too", ("peagle", "destroy", record.name, "--all")),
            code="other-owner",
        )
    recorded = {(resource.type, resource.name) for resource in record.resources}
    leftovers = [
        leftover
        for leftover in _find_leftovers(aws, record.name, needed=everything)
        if (leftover.type, leftover.name) not in recorded  # such as the alarms of a rollout
    ]
    removable = [leftover for leftover in leftovers if everything or goes_with_endpoint(leftover)]
    cost = format_price(price_remaining(aws, record), session.sandbox)
    where = f"{record.name} in {session.where(record.region)}, which costs {cost}:"
    _confirm_removal(where, (*record.resources, *removable), yes)
    again = in_context(("peagle", "destroy", record.name))
    removed, kept = change.run(remove_with_leftovers, removable, again=again)
    left = [leftover for leftover in leftovers if leftover not in removable]
    _report(record.name, as_json, (*removed, *removable), kept, left)


def _destroy_leftovers(
    session: Session, name: str, region: str | None, everything: bool, yes: bool, as_json: bool
) -> None:
    """Remove what an earlier endpoint of that name has left."""
    leftovers: Sequence[Resource] = ()
    if session.is_available:
        aws = session.aws(region)
        if endpoint_created(aws, name) is not None:
            raise Refused(
                f"the endpoint {name} in {aws.region} exists, and carries no tags of this toolkit",
                "remove it with whatever created it",
                code="endpoint-not-ours",
            )
        leftovers = _find_leftovers(aws, name, needed=everything)
    removable = leftovers if everything else ()
    if not removable:
        where = "the sandbox" if session.sandbox else region or default_region()
        nowhere = f"neither this machine nor the tags in {where} know {name}"
        if not session.is_available:
            nowhere = "the sandbox is not running, and this machine has no record of it"
        print_status(f"Nothing to remove: {nowhere}.")
    else:
        _confirm_removal(f"Left by {name}:", removable, yes)
    for leftover in removable:
        remove_leftover(aws, leftover)
    _report(name, as_json, removable, left=() if everything else leftovers)


def _find_leftovers(aws: Aws, name: str, needed: bool) -> Sequence[Resource]:
    """The log, scaling targets and alarms. Raises AccessDenied only when they are ``needed``."""
    try:
        return find_leftovers(aws, name)
    except AccessDenied as denied:
        if needed:
            raise
        print_status(f"The log, scaling targets and alarms are unknown: {denied.message}")
        return ()


def _texts(resources: Iterable[Resource]) -> str:
    return ", ".join(resource.text for resource in resources)


def _show(title: str, resources: Iterable[Resource]) -> None:
    print_status(title)
    for line in dict.fromkeys(resource.text for resource in resources):  # revisions share uploads
        print_status(f"  {line}")


def _confirm_removal(
    title: str,
    resources: Iterable[Resource],
    yes: bool,
    question: str = "Remove all of these?",
) -> None:
    if not yes:
        _show(title, resources)
        confirm(question, "not removed")


def _destroy_images(session: Session, yes: bool, as_json: bool) -> None:
    """Remove repositories with their images, CodeBuild projects, roles and build contexts."""
    aws = session.aws(session.region or DEFAULT_REGION)
    resources = image_resources(aws)
    if resources and not yes:
        for resource in resources:
            print_status(f"  {resource.kind} {resource.name}")
        confirm(f"Remove all of these in {aws.region}, including the images?", "not removed")
    removed = remove_image_resources(aws, print_status)
    if as_json:
        documents = [{"type": resource.kind, "name": resource.name} for resource in removed]
        print_json({"removed": documents})
    elif not removed:
        print_status(f"Nothing to remove: no image of this toolkit is in {aws.region}.")


class RemovalResult(Result):
    """What ``destroy`` removed, what others use, and what it leaves."""

    name: str
    removed: tuple[ResourceName, ...]
    kept: tuple[ResourceName, ...]
    left: tuple[ResourceName, ...]


def _report(
    name: str,
    as_json: bool,
    removed: Sequence[Resource],
    kept: Sequence[Resource] = (),
    left: Sequence[Resource] = (),
) -> None:
    if as_json:
        groups = {"removed": tuple(removed), "kept": tuple(kept), "left": tuple(left)}
        return print_json(RemovalResult(name=name, **groups))
    for resource in removed:
        print_line(f"removed {resource.text}")
        if resource.type == "LifecycleRule":
            print_status(f"Captured data stays in {resource.name}; nothing deletes it any more.")
    for resource in kept:
        print_line(f"kept {resource.text}: in use by others")
    if left:
        command = command_text(("peagle", "destroy", name, "--all"))
        print_status(f"Left: {_texts(left)}; to remove this too", command)
    return None


@click.command(
    cls=PeagleCommand, epilog=examples_text("peagle reap --dry-run", "peagle reap --yes --json")
)
@account_options
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Only this region; may be repeated.  [default: all regions of SageMaker]",
    shell_complete=complete_region,
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted.")
@yes_option
@json_option
def reap(
    session: Session, regions: tuple[str, ...], dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete all deployments whose end time (deploy --ttl, --budget) has passed, in all regions.

    EventBridge Scheduler deletes their endpoints; this removes what remains: configuration, model,
    uploaded weights, role and record, and an endpoint that is still there. What a template made is
    left to it. Exits with 4 if a region could not be searched or a deployment not deleted.
    """
    if not session.is_available:
        raise sandbox_not_running()
    aws = session.aws(regions[0] if regions else None)
    places = regions or hosting_regions(aws.partition)
    search = find_ended(aws, sorted({*places}), session.prices)
    for ended in (*search.removable, *search.of_others):
        record = ended.record
        costs = "its endpoint is deleted"
        if ended.price_per_hour_usd != 0.0:
            price = format_price(ended.price_per_hour_usd, session.sandbox)
            costs = f"its endpoint still costs {price}"
        title = f"{record.name} in {session.where(record.region)} ended at "
        title += f"{ended.ended_at}; {costs}"
        if record.owner:
            print_status(f"{title}; left to {record.owner}")
        else:
            _show(title, record.resources)
    for region, error in search.unknown.items():
        print_status(f"{region} is unknown: {error.message} ({error.fix})")
    done: tuple[Reaped, ...] = ()
    if search.removable and not dry_run:
        confirm("Delete all of these?", "not deleted", yes=yes)
        with session.progress() as observe:
            done = remove_ended(aws, search.removable, session.prices, observe)
    failed = [ended for ended in done if ended.error]
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "ended": search.removable,
                "reaped": [ended for ended in done if not ended.error],
                "failed": failed,
                "left": search.of_others,
                "unknown": [
                    {"region": region, **error.document()}
                    for region, error in search.unknown.items()
                ],
            }
        )
    else:
        if not search.removable and not search.unknown:
            print_line("Nothing to delete: no deployment is past its end.")
        for ended in done:
            for resource in ended.removed:
                print_line(f"removed {resource.text} ({ended.record.region})")
            for resource in ended.kept:
                print_line(f"kept {resource.text}: in use by others")
    if failed:
        names = ", ".join(ended.record.name for ended in failed)
        message = failed[0].error.message if failed[0].error else ""
        command = ("peagle", "destroy", failed[0].record.name)
        raise CloudError(
            f"not deleted: {names}: {message}", Fix("try it alone", command), code="not-reaped"
        )
    if search.unknown:
        raise CloudError(
            f"not searched: {', '.join(search.unknown)}",
            "see above; the policy infra/iam/deploy-policy.json allows it",
            "regions-unknown",
        )
