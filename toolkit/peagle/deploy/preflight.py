"""Checks a plan against the account before anything is created. Reads only.

preflight               everything that deploying the plan depends on
plan_with_live_prices   a new plan, ranked by today's prices, with the quota and the stored weights
live_price_of_plan      the same for the plan of a file
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from peagle.aws import s3, sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.image_records import image_findings
from peagle.aws.prerequisites import access_findings, presence_findings, role_findings
from peagle.aws.prices import (
    NOT_FROM_AWS,
    NOT_LISTED,
    PRICE_SNAPSHOT,
    FreshPrices,
    fresh_prices,
    hourly_price,
    unlisted_findings,
)
from peagle.aws.quotas import QUOTA_CODES, QuotaNeed, quota_findings, quotas_at_plan
from peagle.aws.roles import Role, find_role
from peagle.aws.sagemaker import BROKEN, Endpoint, update_batch_size
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import InstanceTable, Price
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.deploy import state
from peagle.deploy.desired import (
    Change,
    DesiredState,
    desired_state,
    local_weights,
    required_change,
)
from peagle.deploy.diff import SettingChange
from peagle.deploy.discover import complete_deployment, current_deployment
from peagle.deploy.live import changes_of_live
from peagle.deploy.owner import require_own
from peagle.deploy.state import Deployment
from peagle.findings import Finding, error, errors
from peagle.planning.candidates import price_unknown
from peagle.planning.drafter import NOT_READ
from peagle.planning.pins import pins_of
from peagle.planning.plan import Plan
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

CHECKED_AGAIN = LISTED_CODES | QUOTA_CODES | WEIGHTS_CODES | PIN_CODES
"""Findings that preflight checks again; the plan's own no longer count."""


@dataclass(frozen=True)
class Preflight:
    """The change to make, the requests to make it with, and the findings.

    ``changes`` are the settings that an update changes. ``broken`` is the state of an endpoint that
    is deleted and created again, empty otherwise.
    """

    desired: DesiredState
    change: Change
    role: Role
    record: Deployment | None
    findings: tuple[Finding, ...]
    changes: tuple[SettingChange, ...] = ()
    broken: str = ""


def preflight(
    aws: Aws,
    plan: Plan,
    instances: InstanceTable,
    role: str | None = None,
    bucket: str | None = None,
) -> Preflight:
    """Check everything in the account that deploying ``plan`` depends on.

    ``role`` and ``bucket`` are the user's choices; without them, they are found.
    Raises UserError and CloudError when credentials, role or folders cannot be read.
    """
    live = sagemaker.describe(aws, plan.name)
    record = _record(aws, plan.name, live, instances)
    serving = pins_of(record.current.served.variables) if record else None
    pinned = pin_plan(aws, plan, serving)
    priced, found = _with_price(aws, pinned.plan)
    if role is None and record is not None:  # a change of role would be an update
        used = Role(record.current.role, "as deployed before")
    else:
        used = find_role(aws, role)
    if not local_weights(plan):
        bucket = None
    elif not bucket:
        earlier = record.current.bucket if record else None
        bucket = earlier or s3.default_bucket(aws.account, aws.region)
    desired = desired_state(priced, used.arn, bucket, record)
    change = required_change(record, live, desired)
    found += _name_in_use(aws, plan, record, live)
    if change in ("create", "update"):
        found += request_findings(desired.requests, plan.region)
        found += _quota(aws, plan, change, instances)
        found += _foreign_objects(aws, desired)
        found += [*image_findings(aws, plan), *mounted_findings(aws, plan), *pinned.findings]
        found += _prerequisites(aws, used, desired)
    changed: tuple[SettingChange, ...] = ()
    if change == "update" and record and live:
        changed = changes_of_live(record, live, desired.revision)
    broken = live.status if live and live.status in BROKEN else ""
    return Preflight(desired, change, used, record, tuple(found), changed, broken)


def _record(
    aws: Aws, name: str, live: Endpoint | None, instances: InstanceTable
) -> Deployment | None:
    """The deployment of that name, also one of another machine.

    Raises AccessDenied when an endpoint exists and its tags may not be read, and Refused for the
    deployment of another owner.
    """
    known = state.load_record(aws.scope, aws.region, name)
    try:
        record = current_deployment(aws, name, known, lambda: instances, live)
    except AccessDenied:
        if known is None and live is not None:
            raise
        return known
    if record is None:
        return None
    require_own(record)
    # What another machine has made since, such as a temporary endpoint that it left.
    return complete_deployment(aws, record, lambda: instances) if known else record


def _prerequisites(aws: Aws, role: Role, desired: DesiredState) -> Iterator[Finding]:
    """What SageMaker needs from IAM, S3 and ECR. Nothing is asked about a role that is not fit."""
    unfit = tuple(role_findings(aws, role))
    yield from unfit
    if not unfit:
        uploaded = {S3Uri.parse(upload.uri) for upload in desired.uploads}
        read = {S3Uri.parse(prefix.uri) for prefix in prefixes_read(desired.plan)}
        yield from access_findings(aws, role, sorted(uploaded | read, key=str))
    yield from presence_findings(aws, desired.plan.runtime.image)


def _with_price(aws: Aws, plan: Plan) -> tuple[Plan, list[Finding]]:
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
    changed = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
    return plan.model_copy(update=changed)


def _name_in_use(
    aws: Aws, plan: Plan, record: Deployment | None, live: Endpoint | None
) -> Iterator[Finding]:
    if live is None or (record and sagemaker.owner(aws, "Endpoint", plan.name) == record.id):
        return
    message = f"an endpoint called {plan.name} exists that this toolkit did not create"
    yield error("name-in-use", "name", message, "choose another --name")


def _quota(aws: Aws, plan: Plan, change: Change, instances: InstanceTable) -> tuple[Finding, ...]:
    """An update of one instance starts its successor beside it (blue/green); several instances
    are replaced in batches (``sagemaker.update``). A new endpoint, also one that is being created,
    does not count against itself."""
    if change == "update":
        more = update_batch_size(plan.instance_count)
        need = QuotaNeed(plan.instance_type, plan.instance_count, more, is_update=True)
    else:
        count = plan.instance_count
        need = QuotaNeed(plan.instance_type, count, count, own=plan.name)
    return quota_findings(aws, need, instances)


def _foreign_objects(aws: Aws, desired: DesiredState) -> Iterator[Finding]:
    """SageMaker mounts every object below the prefix, so it may hold no others."""
    for upload in desired.uploads:
        if not s3.bucket_exists(aws, upload.bucket):
            continue
        found = set(Bucket(aws, upload.bucket).sizes(upload.prefix))
        foreign = sorted(found - set(upload.keys))
        if foreign:
            message = f"{upload.uri} holds {len(foreign)} other files, such as {foreign[0]}"
            yield error("prefix-in-use", "bucket", message, "remove them, or choose another --name")


def plan_with_live_prices(
    aws: Aws, catalog: Catalog, plan: Callable[[Catalog, bool], Plan], head_in_s3: bool
) -> Plan:
    """The plan, ranked by today's prices, with findings about the account's quota and the weights.

    ``plan`` makes a plan from a catalogue; its second argument is whether it reads a drafter from
    the Hub or S3. Without access to AWS: the catalogue's prices, and a warning.
    """
    fresh = fresh_prices(aws, catalog.instances)
    catalog = catalog.model_copy(update={"instances": fresh.table})
    made = plan(catalog, not head_in_s3)
    stored = mounted_findings(aws, made)
    if head_in_s3 and not errors(stored):
        # An incomplete copy may lack the head, and another pair's head must not be planned with.
        made = plan(catalog, True)
    elif head_in_s3:
        kept = tuple(finding for finding in made.findings if finding.code != NOT_READ)
        made = made.model_copy(update={"findings": kept})
    pinned = pin_plan(aws, made)
    return _with_account_findings(aws, pinned.plan, fresh, (*stored, *pinned.findings))


def live_price_of_plan(aws: Aws, catalog: Catalog, plan: Plan) -> Plan:
    """The plan of a file with today's price and the same findings; nothing else changes."""
    fresh = fresh_prices(aws, catalog.instances)
    price = fresh.listed.price(plan.instance_type) if fresh.listed else None
    priced = _priced(plan, price) if price else plan
    pinned = pin_plan(aws, priced)
    stored = (*mounted_findings(aws, priced), *pinned.findings)
    return _with_account_findings(aws, pinned.plan, fresh, stored)


def _with_account_findings(
    aws: Aws, plan: Plan, fresh: FreshPrices, stored: tuple[Finding, ...]
) -> Plan:
    """The plan with findings about the price, the quota, and the weights (``stored``).

    ``price-not-listed`` replaces ``price-unknown``.
    """
    unlisted = unlisted_findings(fresh.listed, plan.instance_type)
    quota = quotas_at_plan(aws, plan.instance_type, plan.instance_count, fresh.table)
    own = [one for one in plan.findings if not (unlisted and one.code == "price-unknown")]
    if aws.in_sandbox:
        own = [one for one in own if one.code not in NOT_IN_SANDBOX]
    found = (*own, *fresh.findings, *unlisted, *quota, *stored)
    levels = ("error", "warning", "note")
    by_level = sorted(found, key=lambda finding: levels.index(finding.level))
    return plan.model_copy(update={"findings": tuple(by_level)})
