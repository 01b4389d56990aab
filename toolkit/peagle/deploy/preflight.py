"""What is checked in the account before anything is created. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peagle.aws import s3 as storage
from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws
from peagle.aws.image_records import image_findings
from peagle.aws.prices import NOT_AMAZONS, NOT_LISTED, PRICE_SNAPSHOT, hourly_price
from peagle.aws.quotas import QUOTA_CODES, Need, quota_findings
from peagle.aws.roles import Role, find_role
from peagle.aws.sagemaker import Endpoint, batch_of
from peagle.deploy import state as records
from peagle.deploy.apply import Change, change_of
from peagle.deploy.desired import Wanted, complete, directories
from peagle.deploy.state import Deployment
from peagle.findings import Finding, error, warning
from peagle.planning.plan import Plan
from peagle.request_validation import findings
from peagle.weights.mounted import WEIGHTS_CODES, mounted_findings

UNSURE_OF_PRICE = frozenset(
    {"price-unknown", "price-of-another-region", PRICE_SNAPSHOT, NOT_LISTED, NOT_AMAZONS}
)
"""Findings of the plan that a look at AWS's own price list settles, one way or the other."""


SETTLED_HERE = UNSURE_OF_PRICE | QUOTA_CODES | WEIGHTS_CODES
"""Findings of a plan that preflight looks into anew, so that the plan's own no longer count."""


@dataclass(frozen=True)
class Choices:
    """What the user said about the account; ``None``: find it."""

    role: str | None = None
    bucket: str | None = None


@dataclass(frozen=True)
class Preflight:
    """What was found: the change to make, with what, and what is to be said about it."""

    wanted: Wanted
    change: Change
    role: Role
    record: Deployment | None
    findings: tuple[Finding, ...]


def preflight(aws: Aws, plan: Plan, choices: Choices) -> Preflight:
    """Look at everything in the account that deploying ``plan`` depends on.

    Raises UserError and CloudError for what cannot even be looked at: credentials, role, folders.
    """
    record = records.load(aws.scope, aws.region, plan.name)
    live = endpoints.describe(aws, plan.name)
    priced, price_findings = _with_price(aws, plan)
    role = _role(aws, choices, record)
    wanted = complete(priced, role.arn, _bucket(aws, plan, choices, record), record)
    change = change_of(record, live, wanted)
    found = [*price_findings, *_name_in_use(aws, plan, record, live)]
    if change in ("create", "update"):
        found += [*findings(wanted.requests, plan.region), *_quota(aws, plan, change)]
        found += _foreign_objects(aws, wanted)
        found += [*image_findings(aws, plan), *mounted_findings(aws, plan)]
    return Preflight(wanted, change, role, record, tuple(found))


def _role(aws: Aws, choices: Choices, record: Deployment | None) -> Role:
    """An earlier deploy's role is kept unless another is named: a change of role is an update."""
    if choices.role is None and record is not None:
        return Role(record.current.role, "as deployed before")
    return find_role(aws, choices.role)


def _bucket(aws: Aws, plan: Plan, choices: Choices, record: Deployment | None) -> str | None:
    """Where folders of weights go, if the plan has any."""
    if not directories(plan):
        return None
    earlier = record.current.bucket if record else None
    return choices.bucket or earlier or storage.default_bucket(aws.account, aws.region)


def _with_price(aws: Aws, plan: Plan) -> tuple[Plan, list[Finding]]:
    """The plan with AWS's own price where the catalogue has none for the region."""
    doubts = {finding.code for finding in plan.findings} & UNSURE_OF_PRICE
    if plan.price_per_hour_usd is not None and not doubts:
        return plan, []
    price = hourly_price(aws, plan.instance_type)
    if price is None and plan.price_per_hour_usd is not None:
        return plan, [finding for finding in plan.findings if finding.code in UNSURE_OF_PRICE]
    if price is None:
        message = f"neither the catalogue nor AWS tells what {plan.instance_type} costs"
        fix = "look it up first, then say --accept-unknown-price"
        return plan, [warning("price-unknown", "price", message, fix)]
    total = round(price.usd_per_hour * plan.instance_count, 4)
    changed = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
    return plan.model_copy(update=changed), []


def _name_in_use(
    aws: Aws, plan: Plan, record: Deployment | None, live: Endpoint | None
) -> Iterator[Finding]:
    if live is None or (record and endpoints.owner(aws, "Endpoint", plan.name) == record.id):
        return
    message = f"an endpoint called {plan.name} is there already, and was not deployed from here"
    yield error("name-in-use", "name", message, "choose another --name")


def _quota(aws: Aws, plan: Plan, change: Change) -> tuple[Finding, ...]:
    """Blue/green, the way of a single instance, needs the successor beside it; several instances
    are replaced in batches (``endpoints.update``). What an endpoint that is created anew, or is
    being created, holds already is its own."""
    if change == "update":
        more = batch_of(plan.instance_count)
        need = Need(plan.instance_type, plan.instance_count, more, is_update=True)
    else:
        need = Need(plan.instance_type, plan.instance_count, plan.instance_count, own=plan.name)
    return quota_findings(aws, need)


def _foreign_objects(aws: Aws, wanted: Wanted) -> Iterator[Finding]:
    """SageMaker mounts whatever lies below the prefix, so nothing else may lie there."""
    for upload in wanted.uploads:
        if not storage.bucket_exists(aws, upload.bucket):
            continue
        there = set(storage.keys_below(aws, upload.bucket, upload.prefix))
        foreign = sorted(there - set(upload.keys))
        if foreign:
            message = f"{upload.uri} holds {len(foreign)} other files, such as {foreign[0]}"
            yield error("prefix-in-use", "bucket", message, "remove them, or choose another --name")
