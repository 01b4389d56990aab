"""Checks a plan against the account before anything is created. Reads only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from peagle.aws import s3, sagemaker
from peagle.aws.client import Aws
from peagle.aws.ecr import image_findings
from peagle.aws.errors import AccessDenied
from peagle.aws.iam import Role, access_findings, presence_findings, role_findings
from peagle.aws.prices import (
    NOT_FROM_AWS,
    NOT_LISTED,
    PRICE_SNAPSHOT,
    QUOTA_CODES,
    FreshPrices,
    QuotaNeed,
    fresh_prices,
    hourly_price,
    quota_findings,
    quotas_at_plan,
    unlisted_findings,
)
from peagle.aws.sagemaker import BROKEN, Endpoint, update_batch_size
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import InstanceTable, Price
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.deploy import records
from peagle.deploy.access import (
    loosened_findings,
    network_findings,
    role_access_findings,
    vocabulary_findings,
)
from peagle.deploy.alarms import rollout_findings, topic_findings
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import (
    Action,
    DesiredState,
    desired_state,
    required_change,
    role_and_bucket,
)
from peagle.deploy.diff import Change
from peagle.deploy.discover import changes_of_live, complete_deployment, current_deployment
from peagle.deploy.limits import SAME_END_SECONDS, highest_price, planned_end
from peagle.deploy.resources import ALARMS, DASHBOARD, Kind
from peagle.deploy.revisions import require_no_comparison, require_own
from peagle.deploy.scaling import ScalingChange, count_at_update, required_scaling
from peagle.deploy.state import Deployment, utc_text
from peagle.errors import CloudError
from peagle.findings import Finding, error, errors, note
from peagle.planning.drafter import NOT_READ
from peagle.planning.operation import alarm_kinds, capture_text, most_usd_per_hour
from peagle.planning.plan import Plan, Rollout
from peagle.planning.rollout import rollout_of
from peagle.planning.runtime import price_unknown
from peagle.planning.weights import pins_of
from peagle.render.alarms import kind_of_alarm
from peagle.render.requests import VARIANT
from peagle.request_validation import request_findings
from peagle.s3uri import S3Uri
from peagle.weights.bucket import Bucket
from peagle.weights.mounted import WEIGHTS_CODES, mounted_findings, prefixes_read
from peagle.weights.pins import PIN_CODES, pin_plan

PRICE_CODES = frozenset(
    {"price-unknown", "price-of-another-region", PRICE_SNAPSHOT, NOT_LISTED, NOT_FROM_AWS}
)
"""Findings about the price that AWS's own price list resolves."""

LISTED_CODES = PRICE_CODES | {"instance-region-unknown"}
"""All findings of the plan that AWS's own price list resolves: a price shows that the region hosts
the type."""


def with_price(aws: Aws, plan: Plan) -> tuple[Plan, list[Finding]]:
    """The plan with AWS's own price where the catalogue has none for the region."""
    doubts = [finding for finding in plan.findings if finding.code in LISTED_CODES]
    if plan.price_per_hour_usd is not None and not doubts:
        return plan, []
    price = hourly_price(aws, plan.instance_type)
    if price is None and plan.price_per_hour_usd is not None:
        return plan, doubts
    if price is None:
        message = f"neither the catalogue nor AWS has a price for {plan.instance_type}"
        fix = "look up the price, then add --accept-unknown-price"
        others = [finding for finding in doubts if finding.code not in PRICE_CODES]
        return plan, [*others, price_unknown(message, fix)]
    return _priced(plan, price), []


def _priced(plan: Plan, price: Price) -> Plan:
    total = round(price.usd_per_hour * plan.instance_count, 4)
    changed: dict[str, Any] = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
    if plan.rollout:
        changed["rollout"] = plan.rollout.at_price(price.usd_per_hour)
    return plan.model_copy(update=changed)


def plan_with_live_prices(
    aws: Aws, catalog: Catalog, plan: Callable[[Catalog, bool], Plan], head_in_s3: bool
) -> Plan:
    """The plan, ranked by today's prices, with findings about the account's quota and the weights.

    ``plan`` makes a plan from a catalogue; its second argument is whether it reads a drafter from
    the Hub or S3. Without access to AWS: the catalogue's prices, and a warning.
    """
    fresh = fresh_prices(aws, catalog.instances)
    catalog = replace(catalog, instances=fresh.table)
    made = plan(catalog, not head_in_s3)
    stored = mounted_findings(aws, made)
    if head_in_s3 and not errors(stored):
        # An incomplete copy may lack the head, and another pair's head must not be planned with.
        made = plan(catalog, True)
    elif head_in_s3:
        kept = tuple(finding for finding in made.findings if finding.code != NOT_READ)
        made = made.model_copy(update={"findings": kept})
    return _with_account_findings(aws, made, fresh, stored)


def live_price_of_plan(aws: Aws, catalog: Catalog, plan: Plan) -> Plan:
    """The plan of a file with today's price and the same findings; nothing else changes."""
    fresh = fresh_prices(aws, catalog.instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    priced = _priced(plan, price) if price else plan
    return _with_account_findings(aws, priced, fresh, mounted_findings(aws, priced))


def _with_account_findings(
    aws: Aws, plan: Plan, fresh: FreshPrices, stored: tuple[Finding, ...]
) -> Plan:
    """The plan with pins, and with findings about price, quota and weights (``stored``).

    ``price-not-listed`` replaces ``price-unknown``.
    """
    pinned = pin_plan(aws, plan)
    plan = pinned.plan
    unlisted = unlisted_findings(fresh.listed, plan.instance_type)
    quota = quotas_at_plan(aws, plan.instance_type, plan.instance_count, fresh.table)
    plan_findings = [
        finding for finding in plan.findings if not (unlisted and finding.code == "price-unknown")
    ]
    if aws.in_sandbox:
        plan_findings = [finding for finding in plan_findings if finding.code not in NOT_IN_SANDBOX]
    findings = (*plan_findings, *fresh.findings, *unlisted, *quota, *stored, *pinned.findings)
    levels = ("error", "warning", "note")
    by_level = sorted(findings, key=lambda finding: levels.index(finding.level))
    return plan.model_copy(update={"findings": tuple(by_level)})


CHECKED_AGAIN = LISTED_CODES | QUOTA_CODES | WEIGHTS_CODES | PIN_CODES
"""Findings that preflight checks again; the plan's own no longer count."""


@dataclass(frozen=True)
class Preflight:
    """The change to make, the requests to make it with, and the findings.

    ``changes`` are the settings that an update changes, and those outside of the endpoint, which
    are applied without an update too. ``broken`` is the state of an endpoint that is deleted and
    created again, empty otherwise. ``scaling`` is what changes of automatic scaling.
    ``rollout`` is the plan's, for the instances that run. ``most_usd_per_hour`` is the price of the
    most instances that may run, ``None`` when unknown.
    """

    desired: DesiredState
    change: Action
    role: Role
    record: Deployment | None
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...] = ()
    broken: str = ""
    scaling: ScalingChange | None = None
    rollout: Rollout | None = None
    most_usd_per_hour: float | None = None


def preflight(
    aws: Aws,
    plan: Plan,
    instances: InstanceTable,
    role: str | None = None,
    bucket: str | None = None,
    beside: bool = False,
) -> Preflight:
    """Check everything in the account that deploying ``plan`` depends on; with ``beside``, that
    serving it beside the revision in service depends on.

    ``role`` and ``bucket`` are the user's choices; without them, they are found.
    Raises UserError and CloudError when credentials, role or folders cannot be read, and Refused
    while the deployment compares two plans, unless ``beside``.
    """
    live = sagemaker.describe(aws, plan.name)
    record = _record(aws, plan.name, live, instances)
    if record and not beside:
        require_no_comparison(record)
    pinned = pin_plan(aws, plan, pins_of(record.current.served.variables) if record else None)
    priced, findings = with_price(aws, pinned.plan)
    used, bucket = role_and_bucket(aws, plan, record, role, bucket)
    desired = desired_state(priced, used.arn, bucket, record)
    change = required_change(record, live, desired)
    scaling = required_scaling(aws, record, live, desired.plan.scaling)
    if change == "nothing" and scaling:
        change = "scale"
    if live and not (record and sagemaker.owner(aws, "Endpoint", plan.name) == record.id):
        message = f"an endpoint called {plan.name} exists that this toolkit did not create"
        findings.append(error("name-in-use", "name", message, "choose another --name"))
    if change == "update":
        findings += instance_findings(desired, live)
    count = priced.instance_count
    if change == "update" and live:
        count = count_at_update(aws, record, desired.revision, live)
    rollout = priced.rollout
    if rollout and change == "update" and priced.copies is None:
        planned, rollout = rollout, rollout_of(rollout, count)
        if rollout.text != planned.text:
            message = f"with {count} running, the update is {rollout.text}"
            findings.append(note("rollout-adapted", "rollout", message, "nothing: it is automatic"))
    if change in ("create", "update"):
        more = 0
        if change == "update":
            more = rollout.extra_instances if rollout else update_batch_size(count)
        findings += request_findings(desired.requests, plan.region)
        if beside and record and live:
            findings += _quota_beside(aws, priced, record, live, instances)
        else:
            findings += _quota(aws, plan, instances, count, more)
        findings += [*_foreign_objects(aws, desired), *image_findings(aws, plan)]
        findings += [*mounted_findings(aws, plan), *pinned.findings]
        findings += _prerequisites(aws, used, desired, more if change == "update" else count)
    findings += topic_findings(aws, plan)
    if change in ("nothing", "scale") and record:
        findings += rollout_findings(priced, record.serving)
    changed: tuple[Change, ...] = ()
    if record:
        changed = tuple(_changes(aws, desired, record, live, change == "update", beside))
    if change == "update":
        findings += loosened_findings(changed)
    broken = live.status if live and live.status in BROKEN else ""
    usd, limit = most_usd_per_hour(desired.plan), plan.limit
    if record and live and limit and limit.budget_usd is not None:
        usd = highest_price(aws, record, desired.revision, live, keeps_bounds=False)
    return Preflight(
        desired, change, used, record, tuple(findings), changed, broken, scaling, rollout, usd
    )


def _changes(
    aws: Aws,
    desired: DesiredState,
    record: Deployment,
    live: Endpoint | None,
    is_update: bool,
    beside: bool,
) -> Iterator[Change]:
    """What the change alters in an endpoint that serves, and in what belongs to it."""
    plan, revision = desired.plan, desired.revision
    if is_update and live:
        yield from changes_of_live(record, live, revision)
    if beside:
        return
    yield from _change("dashboard", _names(record, DASHBOARD), DASHBOARD.desired(plan, ""))
    kinds = [kind_of_alarm(record.name, name) or name for name in _names(record, ALARMS)]
    yield from _change("alarms", kinds, alarm_kinds(plan))
    if record.current.plan is not None:
        captures = (each.observe and each.observe.capture for each in (record.current.plan, plan))
        texts = [[capture_text(capture)] if capture else [] for capture in captures]
        yield from _change("captured data", *texts)
    with suppress(CloudError):  # deploy itself reports an end that it refuses
        end = planned_end(DeploymentContext(aws, record), revision).at
        ends = (record.ends_at, end)
        if None in ends or abs((ends[0] or 0) - (end or 0)) >= SAME_END_SECONDS:
            yield from _change("end", *([] if at is None else [utc_text(at)] for at in ends))


def _names(record: Deployment, kind: Kind) -> list[str]:
    return [resource.name for resource in record.resources if resource.type == kind.type]


def _change(path: str, before: Iterable[str], after: Iterable[str]) -> Iterator[Change]:
    texts = [", ".join(sorted({*names})) or None for names in (before, after)]
    if texts[0] != texts[1]:
        yield Change(path, *texts)


def _record(
    aws: Aws, name: str, live: Endpoint | None, instances: InstanceTable
) -> Deployment | None:
    """The deployment of that name, also one of another machine.

    Raises AccessDenied when an endpoint exists and its tags may not be read, and Refused for the
    deployment of another owner.
    """
    stored = records.load_record(aws.scope, aws.region, name)
    try:
        record = current_deployment(aws, name, stored, lambda: instances, live)
    except AccessDenied:
        if stored is None and live is not None:
            raise
        return stored
    if record is None:
        return None
    require_own(record)
    # With what another machine has made since.
    return complete_deployment(aws, record, lambda: instances) if stored else record


def _prerequisites(aws: Aws, role: Role, desired: DesiredState, started: int) -> Iterator[Finding]:
    """What SageMaker needs from IAM, S3 and ECR, and from the network for the instances that it
    starts. Nothing is asked about a role that is not fit."""
    unfit = tuple(role_findings(aws, role))
    yield from unfit
    if not unfit:
        uploaded = {S3Uri.parse(upload.uri) for upload in desired.uploads}
        read = {S3Uri.parse(prefix.uri) for prefix in prefixes_read(desired.plan)}
        yield from access_findings(aws, role, sorted(uploaded | read, key=str))
        yield from role_access_findings(aws, role, desired.plan)
    yield from presence_findings(aws, desired.plan.runtime.image)
    yield from network_findings(aws, desired.plan, started)
    yield from vocabulary_findings(aws, desired.plan)


def instance_findings(desired: DesiredState, live: Endpoint | None) -> Iterator[Finding]:
    """The error that an update would change the instances on which copies run, or turn an endpoint
    with copies into one without, which SageMaker does not do."""
    if live is None or live.status in BROKEN:  # then it is created again
        return
    if not (live.hosts_components or desired.component):
        return
    if live.endpoint_config == desired.config["EndpointConfigName"]:
        return
    message = (
        f"the endpoint {live.name} runs on other instances, or without copies, and an update of an "
        "endpoint with copies replaces their model only"
    )
    fix = "choose another --name and destroy this one afterwards, or destroy it first"
    if not live.hosts_components:
        fix = f"use --copies 1 for one engine on each instance, {fix}"
    yield error("copies-fixed-instances", "name", message, fix)


def _quota(
    aws: Aws, plan: Plan, instances: InstanceTable, count: int, more: int
) -> tuple[Finding, ...]:
    """About ``count`` instances, and ``more`` during an update, which are 0 for a new endpoint:
    also one that is being created does not count against itself. A quota below the maximum of
    scaling is a warning."""
    if more:
        need = QuotaNeed(plan.instance_type, count, more, is_update=True, may_roll=True)
    else:
        need = QuotaNeed(plan.instance_type, count, count, own=plan.name)
    findings = tuple(quota_findings(aws, need, instances))
    if plan.scaling is None or errors(findings):
        return findings
    most = plan.scaling.max_instances
    need = QuotaNeed(plan.instance_type, most, most, own=plan.name)
    text = f"scaling to {most} instances will fail"
    at_most = (
        finding.model_copy(update={"level": "warning", "message": f"{text}: {finding.message}"})
        for finding in quota_findings(aws, need, instances)
        if finding.level == "error"
    )
    return (*findings, *at_most)


def _quota_beside(
    aws: Aws, plan: Plan, record: Deployment, live: Endpoint, instances: InstanceTable
) -> Iterator[Finding]:
    """SageMaker starts new instances for both variants before it ends those that serve now."""
    together = Counter({plan.instance_type: plan.instance_count})
    together[record.current.served.instance_type] += live.running.get(VARIANT, 0)
    for instance_type, count in together.items():
        need = QuotaNeed(instance_type, count, count, is_update=True)
        yield from quota_findings(aws, need, instances)


def _foreign_objects(aws: Aws, desired: DesiredState) -> Iterator[Finding]:
    """SageMaker mounts every object below the prefix, so it may hold no others."""
    for upload in desired.uploads:
        if not s3.bucket_exists(aws, upload.bucket):
            continue
        keys = set(Bucket(aws, upload.bucket).sizes(upload.prefix))
        foreign = sorted(keys - set(upload.keys))
        if foreign:
            message = f"{upload.uri} holds {len(foreign)} other files, such as {foreign[0]}"
            yield error("prefix-in-use", "bucket", message, "remove them, or choose another --name")
