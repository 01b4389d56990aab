"""The two variants of an endpoint that compares two plans: names, weights, configuration, cost.

The revision in service keeps the name of the only variant, so that its metrics, alarms and scaling
go on; it also keeps its weight, which an update may retain. So the share of the other variant,
``Candidate``, is in its own weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from peagle.aws.sagemaker import Endpoint
from peagle.deploy.state import Deployment, RunningComparison
from peagle.errors import Fix, Refused
from peagle.render.requests import VARIANT

CANDIDATE = "Candidate"
"""The variant with the plan that is compared."""

_OF_ENDPOINT = (
    "KmsKeyId", "DataCaptureConfig", "VpcConfig", "EnableNetworkIsolation", "ExecutionRoleArn",
    "MetricsConfig",
)  # fmt: skip
"""Members of a configuration that concern all variants: those of the one in service stay."""


def require_no_comparison(record: Deployment) -> None:
    """Raise Refused while the endpoint has two variants, or is getting or losing the second one."""
    comparison = record.comparison
    if comparison is None:
        return
    pending, candidate = record.pending, comparison.candidate
    if pending and pending.fingerprint == candidate.fingerprint:
        raise Refused(
            f"the promotion of {candidate.name} on {record.name} has not ended",
            Fix("finish it", ("peagle", "promote", record.name)),
            code="promotion-unfinished",
        )
    raise Refused(
        f"{record.name} compares {candidate.name} with what it serves, and a comparison ends "
        "before another change begins",
        Fix(
            "let the candidate serve alone with promote, or remove it with drop",
            ("peagle", "drop", record.name),
        ),
        code="comparison-runs",
    )


def required_comparison(record: Deployment) -> RunningComparison:
    """The deployment's comparison. Raises Refused when there is none."""
    if record.comparison is None:
        raise Refused(
            f"{record.name} has no comparison in progress",
            Fix("begin a comparison", ("peagle", "compare", record.name, "--with", "PAIR|PLAN")),
            code="no-comparison",
        )
    return record.comparison


def candidate_weight(share: float, weight: float) -> float:
    """The candidate's weight for its share of the requests beside a variant of ``weight``."""
    return round(weight * share / (1 - share), 6)


def weights_of(variants: Iterable[Mapping[str, Any]], member: str) -> dict[str, float]:
    """The weights by variant: the ``member`` of a description of variants."""
    return {one["VariantName"]: one.get(member) or 0.0 for one in variants}


def candidate_share(weights: Mapping[str, float]) -> float:
    """The candidate's share of the requests by the weights of the two variants."""
    total = sum(weights.values())
    return round(weights.get(CANDIDATE, 0.0) / total, 6) if total else 0.0


def with_both_variants(
    name: str,
    serving: Mapping[str, Any],
    running: int,
    candidate: Mapping[str, Any],
    share: float,
) -> dict[str, Any]:
    """CreateEndpointConfig with the variant of ``serving``, a configuration as AWS describes it,
    on as many instances as are ``running``, and that of ``candidate``, a request.

    Raises Refused for a configuration that the comparison cannot keep.
    """
    variants = serving["ProductionVariants"]
    only = variants[0] if len(variants) == 1 else {}
    if only.get("VariantName") != VARIANT or "ModelName" not in only:
        raise Refused(
            f"the configuration {serving['EndpointConfigName']} is not of one variant {VARIANT} "
            "with a model, to which a comparison can add a second one",
            "deploy the other plan under another --name",
            code="not-comparable",
        )
    first = {**only, "InitialInstanceCount": running or only["InitialInstanceCount"]}
    weight = first.get("InitialVariantWeight") or 1.0
    second = {
        **candidate["ProductionVariants"][0],
        "VariantName": CANDIDATE,
        "InitialVariantWeight": candidate_weight(share, weight),
    }
    kept = {key: serving[key] for key in _OF_ENDPOINT if serving.get(key)}
    return {
        "EndpointConfigName": name,
        "ProductionVariants": [first, second],
        **kept,
        "Tags": candidate["Tags"],
    }


def of_variant(live: Endpoint, variant: str) -> Endpoint:
    """The endpoint with the instances of one variant only."""
    return replace(live, running={variant: live.running.get(variant, 0)})


def first_variant(live: Endpoint) -> Endpoint:
    """The endpoint with the instances of the revision in service, also during a comparison."""
    return of_variant(live, VARIANT) if CANDIDATE in live.running else live


def compares_now(record: Deployment, live: Endpoint | None) -> RunningComparison | None:
    """The comparison, if the endpoint has both variants."""
    comparison = record.comparison
    return comparison if live and comparison and live.revision == comparison.config else None


def usd_per_hour_of(record: Deployment, live: Endpoint) -> dict[str, float | None]:
    """Variant -> price per hour of its instances that run, during a comparison; ``None``: unknown.
    While none runs, those of the configuration count."""
    assert record.comparison is not None
    assert record.serving is not None
    revisions = {VARIANT: record.serving, CANDIDATE: record.comparison.candidate}
    return {
        name: revision.served.with_instances(
            live.running.get(name) or revision.served.instance_count
        ).usd_per_hour
        for name, revision in revisions.items()
    }
