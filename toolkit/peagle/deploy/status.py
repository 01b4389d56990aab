"""The state of a deployment, its price and its cost so far, for people and as JSON.

The cost so far is an estimate: all the time since the endpoint was requested, at the price of what
runs now. AWS's own account of it is the bill.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.autoscaling import Bounds
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy import records
from peagle.deploy.discover import Prices, find_deployments, serves_known_config, with_resources
from peagle.deploy.limits import with_end_in
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
from peagle.deploy.scaling import bounds_fields, listed_scaling, scaling_document
from peagle.deploy.state import Deployment, Served, utc_text
from peagle.errors import PeagleError, Refused, UserError
from peagle.planning.plan import Plan
from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.render.requests import VARIANT
from peagle.store import SANDBOX

ENDED = "Ended"
"""The state of a deployment whose endpoint was deleted at its end time."""


def has_ended(record: Deployment, live: Endpoint | None, now: float | None = None) -> bool:
    """Whether the end time has passed and the endpoint is gone."""
    return live is None and is_past_end(record, now)


def is_past_end(record: Deployment, now: float | None = None) -> bool:
    """Whether the end time has passed."""
    moment = Clock().now() if now is None else now
    return record.ends_at is not None and record.ends_at <= moment


def cost_fields(
    record: Deployment, live: Endpoint | None, usd_per_hour: float | None
) -> dict[str, Any]:
    """The keys of ``list`` and ``status`` about cost and end: in USD, seconds and UTC. ``None``
    where the price is unknown, or there is no end."""
    now = Clock().now()
    ends_at = record.ends_at
    return {
        "price_per_day_usd": None if usd_per_hour is None else round(usd_per_hour * 24, 2),
        "cost_so_far_usd": cost_so_far(record, live, usd_per_hour, now),
        "ends_at": None if ends_at is None else utc_text(ends_at),
        "seconds_left": None if ends_at is None else max(0, int(ends_at - now)),
    }


def cost_so_far(
    record: Deployment, live: Endpoint | None, usd_per_hour: float | None, now: float
) -> float | None:
    """USD since the request, at ``usd_per_hour`` of what runs now; of an endpoint that ended, until
    its end. ``None`` where that is unknown."""
    since = record.billing_since or (live.created if live else None)
    if live is None:
        if record.serving is None:
            return 0.0
        if record.ends_at is None:
            return None
        now, usd_per_hour = min(now, record.ends_at), record.serving.served.usd_per_hour
    if usd_per_hour is None or since is None:
        return None
    return round(max(0.0, now - since) / 3600 * usd_per_hour, 2)


def usd_per_hour_now(record: Deployment, live: Endpoint | None) -> float | None:
    """USD per hour that the deployment costs now; ``None`` when that is unknown, or the endpoint
    was deleted elsewhere.

    The instances that run count; while an endpoint is created, those of its configuration."""
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


def require_known_price(plan: Plan, accepted: bool) -> None:
    """Raise Refused for a plan without a known price, unless that is accepted."""
    if plan.price_per_hour_usd is None and not accepted:
        raise Refused(
            f"the price of {plan.instance_type} in {plan.region} is unknown",
            "look up the price, then add --accept-unknown-price",
            code="price-unknown",
        )


GONE = ("Missing", ENDED)
"""States of a deployment without its endpoint, which was in service."""


def state_of(record: Deployment, live: Endpoint | None) -> str:
    """SageMaker's status of the endpoint, or one of ours:

    ``Incomplete``  deploy was interrupted before it requested the endpoint
    ``Missing``     the endpoint was in service, and was deleted without `peagle destroy`
    ``Ended``       the endpoint was deleted at its end time
    ``Unproved``    it is in service, but its acceptance is not proved
    """
    if live is None and has_ended(record, live):
        return ENDED
    if live is None:
        return "Missing" if record.serving else "Incomplete"
    if live.status != "InService":
        return live.status
    proof = record.serving.proof if record.serving else None
    serves = revision_in_service(record, live.revision) is record.serving
    proved = proof is not None and proof.passed and serves
    return "InService" if proved else "Unproved"


def deployment_status(aws: Aws, record: Deployment) -> dict[str, Any]:
    """The JSON document of ``deploy`` and ``status``. Raises CloudError."""
    live = sagemaker.describe(aws, record.name)
    revision = shown_revision(record, live)
    served, proof = revision.served, revision.proof
    speculation = revision.plan.speculation if revision.plan else None
    tags = sagemaker.readable_tags(aws, live) or {}
    record = with_end_in(record, tags)
    failure = record.failure or unfinished(record, live)
    price = usd_per_hour_now(record, live)
    scaling = scaling_document(aws, live)
    variant = of_variant(live, VARIANT) if live and compares_now(record, live) else live
    return {
        "name": record.name,
        "state": state_of(record, live),
        "pair": served.pair,
        "region": record.region,
        "account": record.account,
        "sandbox": record.scope == SANDBOX,
        "acceptance_length": proof.acceptance_length if proof else None,
        "acceptance_per_position": list(proof.acceptance_per_position) if proof else [],
        "acceptance_floor": speculation.acceptance_floor if speculation else None,
        "acceptance_floor_source": speculation.acceptance_floor_source if speculation else None,
        "drafts": proof.drafts if proof else None,
        "proved": bool(proof and proof.passed),
        "proof": proof.document() if proof else None,
        "openai_base_url": base_url(aws, live) if live else None,
        "price_per_hour_usd": price,
        **cost_fields(record, live, price),
        "price_date": served.price_date,
        "instance_type": served.instance_type,
        "instance_count": served.configured_count or served.instance_count,
        "instances_running": variant.instance_count if variant else 0,
        "scaling": scaling,
        **_copies(served, live),
        "vllm": served.vllm,
        "vllm_here": tags.get(ENGINE_TAG, "").removeprefix("vllm ") or None,
        "speculation": served.k > 0,
        "k": served.k or None,
        "stand_in": tags.get(STAND_IN_TAG),
        "endpoint_status": live.status if live else None,
        "endpoint_config": live.endpoint_config if live else None,
        "failure_reason": (live.failure if live else None) or (failure and failure.message),
        "failure_fix": (failure and failure.fix) or None,
        "failure_command": list(failure.command) if failure and failure.command else None,
        "role": revision.role,
        "fingerprint": revision.fingerprint,
        "owner": record.owner or "peagle",
        "previous": _previous(record, live),
        "comparison": comparison_document(record, live),
        "billing_since": record.billing_since,
        "resources": [
            resource.document() | {"confirmed": resource.made} for resource in record.resources
        ],
    }


def comparison_document(record: Deployment, live: Endpoint | None) -> dict[str, Any] | None:
    """What `peagle compare` added to the endpoint; ``None`` without a comparison. The ``state`` is
    ``running``, ``starting`` or ``not-in-service``."""
    comparison = record.comparison
    if comparison is None:
        return None
    served = comparison.candidate.served
    running = compares_now(record, live)
    starts = live is not None and live.pending_revision == comparison.config
    prices = usd_per_hour_of(record, live) if live and running else {}
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
        "instances_running": live.running.get(CANDIDATE, 0) if live and running else 0,
        "price_per_hour_usd": prices.get(CANDIDATE) if running else None,
        "endpoint_config": comparison.candidate.endpoint_config,
        "fingerprint": comparison.candidate.fingerprint,
    }


def _copies(served: Served, live: Endpoint | None) -> dict[str, int]:
    """The copies that were asked for and that run; empty without an inference component."""
    if served.copies is None:
        return {}
    running = live.component.copies if live and live.component else 0
    return {"copies": served.copies, "copies_running": running}


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


def list_deployments(aws: Aws, regions: Iterable[str], prices: Prices) -> Listing:
    """The deployments of the account in these regions: those with our tags, and those of this
    machine's records, by region and name.

    A region whose tags may not be read shows the records only, and counts as unknown. A record that
    cannot be read hides no other deployment, and not its own one where the account shows it.
    """
    rows: list[dict[str, Any]] = []
    unknown: list[AccessDenied] = []
    damaged: tuple[UserError, ...]
    readable, damaged = records.readable_records(aws.scope)
    by_place = {(record.region, record.name): record for record in readable}
    for region in regions:
        there = aws.in_region(region)
        try:
            deployments, bad_tags = find_deployments(there, prices)
            tagged = {deployment.name: deployment for deployment in deployments}
            damaged = (*damaged, *bad_tags)
        except AccessDenied as denied:
            tagged = {}
            unknown.append(denied)
        recorded = {name: record for (place, name), record in by_place.items() if place == region}
        scaled = listed_scaling(there) if tagged or recorded else {}
        for name in sorted({*tagged, *recorded}):
            rows.append(_row(there, recorded.get(name), tagged.get(name), scaled.get(name)))
    return Listing(tuple(rows), tuple(unknown), damaged)


@dataclass(frozen=True)
class Listing:
    """The rows of ``list``; ``unknown`` says which regions may have more, and ``damaged`` which
    records of this machine, and which tags in the account, cannot be read."""

    rows: tuple[dict[str, Any], ...]
    unknown: tuple[AccessDenied, ...]
    damaged: tuple[UserError, ...] = ()


def _row(
    aws: Aws, record: Deployment | None, tagged: Deployment | None, bounds: Bounds | None
) -> dict[str, Any]:
    """One deployment, by its record unless the account serves something else."""
    deployment = record or tagged
    assert deployment is not None
    live = sagemaker.describe(aws, deployment.name)
    if record and tagged:
        same = (record.id, record.owner) == (tagged.id, tagged.owner)
        is_known = live is None or (same and serves_known_config(record, live))
        if not is_known:
            deployment = tagged
        elif record.id == tagged.id:
            deployment = with_resources(record, tagged.resources)
    tags = sagemaker.readable_tags(aws, live) or {}
    deployment = with_end_in(deployment, tags)
    revision = shown_revision(deployment, live)
    price = usd_per_hour_now(deployment, live)
    return {
        "name": deployment.name,
        "state": state_of(deployment, live),
        "region": deployment.region,
        "pair": revision.served.pair,
        "instances_running": live.instance_count if live else 0,
        "price_per_hour_usd": price,
        **cost_fields(deployment, live, price),
        "acceptance_length": revision.proof.acceptance_length if revision.proof else None,
        "speculation": revision.served.k > 0,
        "compared_share": deployment.comparison.share if deployment.comparison else None,
        "stand_in": tags.get(STAND_IN_TAG),
        "owner": deployment.owner or "peagle",
        **bounds_fields(bounds),
    }


def base_url(aws: Aws, live: Endpoint) -> str:
    """The base URL for OpenAI clients of the endpoint, or of the copies on it."""
    return aws.openai_base_url(live.name, live.name if live.hosts_components else "")


def stand_in_of(aws: Aws, name: str) -> str | None:
    """What the sandbox serves instead of the endpoint's target; ``None`` if it serves that."""
    tags = sagemaker.readable_tags(aws, sagemaker.describe(aws, name)) or {}
    return tags.get(STAND_IN_TAG)


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


def endpoint_created(aws: Aws, name: str) -> float | None:
    """When SageMaker created the endpoint, in epoch seconds; ``None`` without such an endpoint.

    Raises CloudError.
    """
    live = sagemaker.describe(aws, name)
    return live.created if live else None
