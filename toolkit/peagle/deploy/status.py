"""The state of a deployment, its price and its cost so far, for people and as JSON.

The cost so far is an estimate: all the time since the endpoint was requested, at the price of what
runs now. AWS's own account of it is the bill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from peagle.aws import autoscaling, sagemaker
from peagle.aws.autoscaling import Bounds
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy import records
from peagle.deploy.discover import Prices, find_deployments, with_resources
from peagle.deploy.revisions import (
    CANDIDATE,
    compares_now,
    of_variant,
    revision_in_service,
    rollback_target,
    shown_revision,
    unfinished,
    usd_per_hour_of,
)
from peagle.deploy.scaling import with_end_in
from peagle.deploy.state import Deployment, Revision, utc_text
from peagle.errors import PeagleError, Refused, UserError
from peagle.planning.plan import Plan
from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.render.requests import VARIANT
from peagle.store import SANDBOX

ENDED = "Ended"
"""The state of a deployment whose endpoint was deleted at its end time."""

GONE = ("Missing", ENDED)
"""States of a deployment without its endpoint, which was in service."""


def is_past_end(record: Deployment, now: float | None = None) -> bool:
    """Whether the end time has passed."""
    moment = Clock().now() if now is None else now
    return record.ends_at is not None and record.ends_at <= moment


def state_of(record: Deployment, live: Endpoint | None) -> str:
    """SageMaker's status of the endpoint, or one of ours:

    ``Incomplete``  deploy was interrupted before it requested the endpoint
    ``Missing``     the endpoint was in service, and was deleted without `peagle destroy`
    ``Ended``       the endpoint was deleted at its end time
    ``Unproved``    it is in service, but its acceptance is not proved
    """
    serving = record.serving
    if live is None:
        return ENDED if is_past_end(record) else "Missing" if serving else "Incomplete"
    if live.status != "InService":
        return live.status
    serves = revision_in_service(record, live.revision) is serving
    return "InService" if serving and serving.is_proved and serves else "Unproved"


def usd_per_hour_now(record: Deployment, live: Endpoint | None) -> float | None:
    """USD per hour of the instances that run now, or that start; ``None`` when that is unknown, or
    the endpoint was deleted elsewhere."""
    if live is None:
        return None if record.serving else 0.0
    if live.status == "Failed":
        return 0.0
    if compares_now(record, live):
        prices = usd_per_hour_of(record, live).values()
        return None if None in prices else round(sum(price or 0 for price in prices), 4)
    served = shown_revision(record, live).served
    if served.usd_per_hour is None or not served.instance_count:
        return served.usd_per_hour
    running = live.instance_count or (served.instance_count if live.status in BUSY else 0)
    return served.with_instances(running).usd_per_hour


def cost_of_remaining(aws: Aws, record: Deployment) -> float | None:
    """``usd_per_hour_now`` after an error; an endpoint that cannot be looked at counts, as it may
    exist."""
    if not record.of_type("Endpoint"):
        return 0.0
    try:
        live = sagemaker.describe(aws, record.name)
        return usd_per_hour_now(record, live) if live else 0.0
    except PeagleError:
        return record.current.served.usd_per_hour


def require_known_price(plan: Plan, accepted: bool) -> None:
    """Raise Refused for a plan without a known price, unless that is accepted."""
    if plan.price_per_hour_usd is None and not accepted:
        raise Refused(
            f"the price of {plan.instance_type} in {plan.region} is unknown",
            "look up the price, then add --accept-unknown-price",
            code="price-unknown",
        )


def _common_fields(
    record: Deployment, live: Endpoint | None, revision: Revision, tags: Mapping[str, str]
) -> dict[str, Any]:
    """The keys of ``list`` and ``status``. Cost and end are in USD, seconds and UTC; ``None`` where
    the price is unknown, or there is no end."""
    now, ends_at, price = Clock().now(), record.ends_at, usd_per_hour_now(record, live)
    cost, until, rate = None, now, price
    since = record.billing_since or (live.created if live else None)
    if live is None and ends_at is not None and record.serving:
        until, rate = min(now, ends_at), record.serving.served.usd_per_hour
    if live is None and record.serving is None:
        cost = 0.0
    elif rate is not None and since is not None:
        cost = round(max(0.0, until - since) / 3600 * rate, 2)
    return {
        "name": record.name,
        "state": state_of(record, live),
        "region": record.region,
        "pair": revision.served.pair,
        "price_per_hour_usd": price,
        "price_per_day_usd": None if price is None else round(price * 24, 2),
        "cost_so_far_usd": cost,
        "ends_at": None if ends_at is None else utc_text(ends_at),
        "seconds_left": None if ends_at is None else max(0, int(ends_at - now)),
        "acceptance_length": revision.proof.acceptance_length if revision.proof else None,
        "speculation": revision.served.k > 0,
        "stand_in": tags.get(STAND_IN_TAG),
        "owner": record.owner or "peagle",
    }


def deployment_status(aws: Aws, record: Deployment) -> dict[str, Any]:
    """The JSON document of ``deploy`` and ``status``. Raises CloudError."""
    live = sagemaker.describe(aws, record.name)
    revision = shown_revision(record, live)
    served, proof = revision.served, revision.proof
    speculation = revision.plan.speculation if revision.plan else None
    tags = sagemaker.readable_tags(aws, live) or {}
    record = with_end_in(record, tags)
    failure = record.failure or unfinished(record, live)
    bounds = None
    with suppress(AccessDenied):
        bounds = autoscaling.registered(aws, live.name) if live else None
    variant = of_variant(live, VARIANT) if live and compares_now(record, live) else live
    copies = {}
    if served.copies is not None:
        running = live.component.copies if live and live.component else 0
        copies = {"copies": served.copies, "copies_running": running}
    return {
        **_common_fields(record, live, revision, tags),
        "account": record.account,
        "sandbox": record.scope == SANDBOX,
        "acceptance_per_position": list(proof.acceptance_per_position) if proof else [],
        "acceptance_floor": speculation.acceptance_floor if speculation else None,
        "acceptance_floor_source": speculation.acceptance_floor_source if speculation else None,
        "drafts": proof.drafts if proof else None,
        "proved": revision.is_proved,
        "proof": proof.document() if proof else None,
        "openai_base_url": base_url(aws, live) if live else None,
        "price_date": served.price_date,
        "instance_type": served.instance_type,
        "instance_count": served.configured_count or served.instance_count,
        "instances_running": variant.instance_count if variant else 0,
        "scaling": bounds.document() if bounds else None,
        **copies,
        "vllm": served.vllm,
        "vllm_here": tags.get(ENGINE_TAG, "").removeprefix("vllm ") or None,
        "k": served.k or None,
        "endpoint_status": live.status if live else None,
        "endpoint_config": live.endpoint_config if live else None,
        "failure_reason": (live.failure if live else None) or (failure and failure.message),
        "failure_fix": (failure and failure.fix) or None,
        "failure_command": list(failure.command) if failure and failure.command else None,
        "role": revision.role,
        "fingerprint": revision.fingerprint,
        "previous": _previous(record, live),
        "comparison": _comparison(record, live),
        "billing_since": record.billing_since,
        "resources": [
            resource.document() | {"confirmed": resource.made} for resource in record.resources
        ],
    }


def _previous(record: Deployment, live: Endpoint | None) -> dict[str, Any] | None:
    """The revision that ``rollback`` returns to; ``None`` where that one serves already."""
    target = rollback_target(record)
    if target is None or record.owner or (live and live.revision == target.name):
        return None
    return {
        "endpoint_config": target.endpoint_config,
        "fingerprint": target.fingerprint,
        "k": target.served.k or None,
        "image": target.served.image,
    }


def _comparison(record: Deployment, live: Endpoint | None) -> dict[str, Any] | None:
    """What `peagle compare` added to the endpoint; ``None`` without a comparison. The ``state`` is
    ``running``, ``starting`` or ``not-in-service``."""
    comparison = record.comparison
    if comparison is None:
        return None
    served = comparison.candidate.served
    running = live if compares_now(record, live) else None
    starts = live is not None and live.pending_revision == comparison.config
    return {
        "state": "running" if running else "starting" if starts else "not-in-service",
        "variant": CANDIDATE,
        "share": comparison.share,
        "since": comparison.since,
        "pair": served.pair,
        "k": served.k or None,
        "speculation": served.k > 0,
        "instance_type": served.instance_type,
        "instance_count": served.configured_count or served.instance_count,
        "instances_running": running.running.get(CANDIDATE, 0) if running else 0,
        "price_per_hour_usd": usd_per_hour_of(record, running)[CANDIDATE] if running else None,
        "endpoint_config": comparison.candidate.endpoint_config,
        "fingerprint": comparison.candidate.fingerprint,
    }


@dataclass(frozen=True)
class Listing:
    """The rows of ``list``; ``unknown`` says which regions may have more, and ``damaged`` which
    records of this machine cannot be read."""

    rows: tuple[dict[str, Any], ...]
    unknown: tuple[AccessDenied, ...]
    damaged: tuple[UserError, ...] = ()


def list_deployments(aws: Aws, regions: Iterable[str], prices: Prices) -> Listing:
    """The deployments of the account in these regions, by our tags and this machine's records. A
    region whose tags may not be read shows the records only, and counts as unknown. A record that
    cannot be read hides no other deployment, and not its own one where the account shows it."""
    rows: list[dict[str, Any]] = []
    unknown: list[AccessDenied] = []
    readable, damaged = records.readable_records(aws.scope)
    for region in regions:
        there = aws.in_region(region)
        tagged: dict[str, Deployment] = {}
        try:
            tagged = {each.name: each for each in find_deployments(there, prices)}
        except AccessDenied as denied:
            unknown.append(denied)
        recorded = {record.name: record for record in readable if record.region == region}
        scaled: Mapping[str, Bounds] = {}
        if tagged or recorded:
            with suppress(AccessDenied):
                scaled = autoscaling.all_registered(there)
        for name in sorted({*tagged, *recorded}):
            rows.append(_row(there, recorded.get(name), tagged.get(name), scaled.get(name)))
    return Listing(tuple(rows), tuple(unknown), damaged)


def _row(
    aws: Aws, record: Deployment | None, tagged: Deployment | None, bounds: Bounds | None
) -> dict[str, Any]:
    """One deployment, by its record unless the account serves something else."""
    deployment = record or tagged
    assert deployment is not None
    live = sagemaker.describe(aws, deployment.name)
    if record and tagged:
        same = (record.id, record.owner) == (tagged.id, tagged.owner)
        if live and not (same and revision_in_service(record, live.revision)):
            deployment = tagged
        elif record.id == tagged.id:
            deployment = with_resources(record, tagged.resources)
    tags = sagemaker.readable_tags(aws, live) or {}
    deployment = with_end_in(deployment, tags)
    scaling = bounds.document() if bounds else {}
    names = [f"{bound}_{unit}" for unit in ("instances", "copies") for bound in ("min", "max")]
    return {
        **_common_fields(deployment, live, shown_revision(deployment, live), tags),
        "instances_running": live.instance_count if live else 0,
        "compared_share": deployment.comparison.share if deployment.comparison else None,
        **{name: scaling.get(name) for name in names},
    }


def base_url(aws: Aws, live: Endpoint) -> str:
    """The base URL for OpenAI clients of the endpoint, or of the copies on it."""
    return aws.openai_base_url(live.name, live.name if live.hosts_components else "")


def stand_in_of(aws: Aws, name: str) -> str | None:
    """What the sandbox serves instead of the endpoint's target; ``None`` if it serves that."""
    tags = sagemaker.readable_tags(aws, sagemaker.describe(aws, name)) or {}
    return tags.get(STAND_IN_TAG)


def endpoint_created(aws: Aws, name: str) -> float | None:
    """When SageMaker created the endpoint, in epoch seconds; ``None`` without such an endpoint."""
    live = sagemaker.describe(aws, name)
    return live.created if live else None
