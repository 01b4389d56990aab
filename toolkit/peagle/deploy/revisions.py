"""Which revision a deployment serves, keeps and returns to; its two variants during a comparison;
who may change it. Pure: reads and changes nothing.

``serving`` is the last revision that was put into service and proved, or the first one;
``pending`` the one being applied, or in service and not proved; ``previous`` what served before
``serving``. They change together, when a proof passes. So an interruption leaves ``pending``:
deploying that plan again continues it, and a rollback returns to ``serving``. Proofs are tags of
the endpoint too, so that other machines see them.

The revision in service keeps the name of the only variant during a comparison, so that its metrics,
alarms and scaling go on; it also keeps its weight, which an update may retain. So the share of the
other variant, ``Candidate``, is in its own weight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from peagle.aws.sagemaker import ID_TAG, Endpoint
from peagle.deploy.state import (
    Deployment,
    Failure,
    Resource,
    ResourceType,
    Revision,
    RunningComparison,
    weight_prefixes,
)
from peagle.errors import Fix, Refused
from peagle.planning.runtime import MAX_NAME_LENGTH
from peagle.proof import Proof
from peagle.render.requests import (
    OWNER_TAG,
    PROOF_TAG,
    STACK_TAG,
    VARIANT,
    deploy_command,
)

PREVIOUS_TAG = "peagle:previous"
"""Tag of an endpoint with the revision that served before, and its proof."""


def proof_tag(
    proof: Proof | None, fingerprint: str, now: float, key: str = PROOF_TAG
) -> dict[str, str]:
    """The tag: ``revision=... passed=yes length=3.41 drafts=220 floor=2.00 source=log time=...``;
    without a ``proof`` only the revision.

    A tag's value allows letters, digits, spaces and ``_.:/=+-@``. ``now`` is epoch seconds.
    """
    if proof is None:
        return {"Key": key, "Value": f"revision={fingerprint}"}
    fields = {
        "revision": fingerprint,
        "passed": "yes" if proof.passed else "no",
        "length": "" if proof.acceptance_length is None else f"{proof.acceptance_length:.2f}",
        "drafts": str(proof.drafts),
        "floor": "" if proof.floor is None else f"{proof.floor:.2f}",
        "source": proof.source,
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
    }
    text = " ".join(f"{key}={value}" for key, value in fields.items() if value)
    return {"Key": key, "Value": text}


def revision_in(tags: Mapping[str, str], key: str) -> str:
    """The fingerprint in that tag of an endpoint; empty without one."""
    return _fields(tags, key).get("revision", "")


def proof_in(tags: Mapping[str, str], fingerprint: str) -> Proof | None:
    """The proof of that revision in an endpoint's tags; ``None`` without one, or for a value that
    this version cannot read."""
    proofs = (_fields(tags, key) for key in (PROOF_TAG, PREVIOUS_TAG))
    return next(
        (_proof(fields) for fields in proofs if fields.get("revision") == fingerprint), None
    )


def _fields(tags: Mapping[str, str], key: str) -> dict[str, str]:
    words = (word.partition("=") for word in tags.get(key, "").split())
    return {name: value for name, _, value in words}


def _proof(fields: Mapping[str, str]) -> Proof | None:
    try:
        return Proof(
            acceptance_length=float(fields["length"]) if "length" in fields else None,
            drafts=int(fields["drafts"]),
            acceptance_per_position=(),
            floor=float(fields["floor"]) if "floor" in fields else None,
            passed=fields["passed"] == "yes",
            # AWS's image has no counters: without a word about them, nothing may ask for them.
            source="counters" if fields.get("source") == "counters" else "log",
        )
    except (KeyError, ValueError):
        return None


_OF_REVISIONS: tuple[ResourceType, ...] = ("EndpointConfig", "Model", "S3Objects")
"""What revisions need, in the order of removal."""


COMPARISON_SUFFIX = "-compare"
"""Suffix of the name and the fingerprint of a configuration with two variants."""


class Roles(NamedTuple):
    """The revisions of a record."""

    serving: Revision | None
    pending: Revision | None
    previous: Revision | None


def is_comparison(fingerprint: str) -> bool:
    """Whether a configuration with this fingerprint has two variants."""
    return fingerprint.endswith(COMPARISON_SUFFIX)


def as_compared(revision: Revision) -> Revision:
    """The revision as the configuration with both variants has it."""
    length = MAX_NAME_LENGTH - len(COMPARISON_SUFFIX)
    return revision.model_copy(
        update={
            "fingerprint": f"{revision.fingerprint}{COMPARISON_SUFFIX}",
            "name": f"{revision.name[:length].rstrip('-')}{COMPARISON_SUFFIX}",
        }
    )


def is_proved(revision: Revision | None) -> bool:
    return revision is not None and revision.proof is not None and revision.proof.passed


def revision_in_service(record: Deployment, config: str) -> Revision | None:
    """The serving or pending revision with that configuration. The previous one is in service only
    while it is pending again, or after another machine's rollback. During a comparison, it is the
    serving one, which has the first variant."""
    if record.comparison and config == record.comparison.config:
        return record.serving
    revisions = (record.serving, record.pending)
    return next((revision for revision in revisions if revision and revision.name == config), None)


def shown_revision(record: Deployment, live: Endpoint | None) -> Revision:
    """The revision in service, or the pending one when none is."""
    return (live and revision_in_service(record, live.revision)) or record.current


def is_alone(record: Deployment, revision: Revision) -> bool:
    """Whether no other revision serves: the first one, or the one in service again."""
    return record.serving is None or record.serving.fingerprint == revision.fingerprint


def roles_by_tags(
    revisions: Sequence[Revision], live: Endpoint | None, tags: Mapping[str, str]
) -> Roles:
    """The roles of the revisions of a deployment without a record. ``revisions`` are in the order
    of creation, ``tags`` those of the endpoint."""

    def tagged(key: str) -> Revision | None:
        fingerprint = revision_in(tags, key)
        return next(
            (revision for revision in revisions if revision.fingerprint == fingerprint), None
        )

    def of_config(config: str | None) -> Revision | None:
        return next(
            (revision for revision in revisions if config and revision.name == config), None
        )

    serving = of_config(live.revision) if live else None
    if live is None or serving is None:
        newest = revisions[-1] if revisions else None
        return Roles(None, newest, None)
    pending, previous = of_config(live.pending_revision), tagged(PREVIOUS_TAG)
    proved = tagged(PROOF_TAG)
    if proved and proved is not serving:  # an update in service whose proof did not pass
        serving, pending = proved, pending or serving
    if previous is serving:
        previous = None
    return Roles(serving, pending, previous)


def rollback_target(record: Deployment) -> Revision | None:
    """What ``peagle rollback`` returns to: with an update that is not finished, or not proved, what
    served before it; else the previous revision. A rollback that has not reported its result
    continues, and one whose proof failed is undone."""
    for revision in (record.serving, record.previous):
        if revision and record.returning_to and revision.fingerprint == record.returning_to:
            return revision
    if record.pending is None or rollback_unfinished(record):
        return record.previous
    return record.serving


def rollback_unreported(record: Deployment) -> bool:
    """Whether a rollback has returned, and was interrupted before it reported that."""
    serving = record.serving
    if record.pending or serving is None or not record.returning_to:
        return False
    return serving.fingerprint == record.returning_to and is_proved(serving)


def rollback_unfinished(record: Deployment) -> bool:
    """Whether a rollback to the previous revision began and has not ended."""
    pending, previous = record.pending, record.previous
    if pending is None or previous is None or pending.fingerprint != previous.fingerprint:
        return False
    return pending.proof is None or pending.proof.passed


def unfinished(record: Deployment, live: Endpoint | None) -> Failure | None:
    """The command that was killed before it could record a failure, and how to finish it; ``None``
    when there is none, and for another owner's deployment.

    From the record alone, a command that still runs looks the same.
    """
    if record.owner:
        return None
    if live is None and record.serving is None:
        command = deploy_command(record.current.plan) if record.current.plan else ()
        return Failure(
            message="no endpoint was requested yet: the deploy was interrupted, or still runs",
            fix="continue it" if command else "continue it with the same deploy command",
            command=command,
        )
    state = "is not proved: it was interrupted" if rollback_unfinished(record) else ""
    state = "was interrupted at its end" if rollback_unreported(record) else state
    if live is None or not state:
        return None
    return Failure(
        message=f"the rollback to {record.current.name} {state}, or still runs",
        fix="finish it",
        command=("peagle", "rollback", record.name),
    )


def fields_when_proved(record: Deployment, proved: Revision) -> dict[str, Any]:
    """The record's fields once ``proved`` is in service and proved: what served before becomes the
    previous revision, unless it was never proved and an earlier one was."""
    serving, previous = record.serving, record.previous
    if previous and previous.fingerprint == proved.fingerprint:
        previous = None
    former = None if is_alone(record, proved) else serving
    if former and (is_proved(former) or previous is None):
        previous = former
    return {"serving": proved, "pending": None, "previous": previous, "failure": None}


def fields_with_proof(record: Deployment, revision: Revision) -> dict[str, Any]:
    """The record's fields with a new proof of the revision in service, which may have failed."""
    if not is_alone(record, revision):
        return (
            fields_when_proved(record, revision) if is_proved(revision) else {"pending": revision}
        )
    is_finished = is_proved(revision) and record.pending is None
    return {"serving": revision, **({"failure": None} if is_finished else {})}


def stale_resources(record: Deployment) -> tuple[Resource, ...]:
    """The resources that no kept revision needs, in the order of removal."""
    kept = record.revisions
    compared = record.comparison.config if record.comparison else ""
    return tuple(
        resource
        for kind in _OF_REVISIONS
        for resource in record.of_type(kind)
        if resource.name != compared and not any(_needs(revision, resource) for revision in kept)
    )


def _needs(revision: Revision, resource: Resource) -> bool:
    """Revisions may share a folder of weights, which then names only one of them."""
    if resource.revision == revision.fingerprint:
        return True
    if resource.type == "S3Objects":
        prefixes = tuple(weight_prefixes(revision.served))
        return any(
            resource.name.startswith(prefix) or prefix.startswith(resource.name)
            for prefix in prefixes
        )
    return resource.name in (revision.model, revision.name, revision.instances_config)


_STACK_TAG_OF_AWS = "aws:cloudformation:stack-name"
"""Set by CloudFormation on the resources of a stack."""


def require_own(deployment: Deployment) -> None:
    """Raise Refused for a deployment that a template owns."""
    if deployment.owner:
        message = f"{deployment.name} belongs to {deployment.owner}, which would undo changes"
        raise Refused(message, "change it there", "other-owner")


def owner_of(tags: Mapping[str, str]) -> str:
    """Who changes the resource: empty for this toolkit, else such as ``CloudFormation stack
    NAME``."""
    stack = tags.get(STACK_TAG) or tags.get(_STACK_TAG_OF_AWS)
    owner = tags.get(OWNER_TAG, "cloudformation" if stack else "")
    if owner == "peagle" or (not owner and ID_TAG in tags):
        return ""
    if owner == "cloudformation":
        return f"CloudFormation stack {stack}" if stack else "a CloudFormation stack"
    programs = {"terraform": "a Terraform module", "cdk": "a CDK app"}
    return programs.get(owner) or owner or "an unknown owner"


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
    name, pending, candidate = record.name, record.pending, comparison.candidate
    if pending and pending.fingerprint == candidate.fingerprint:
        message = f"the promotion of {candidate.name} on {name} has not ended"
        fix = Fix("finish it", ("peagle", "promote", name))
        raise Refused(message, fix, "promotion-unfinished")
    message = f"{name} compares {candidate.name} with what it serves: end that first"
    sentence = "let the candidate serve alone with promote, or remove it with drop"
    raise Refused(message, Fix(sentence, ("peagle", "drop", name)), "comparison-runs")


def required_comparison(record: Deployment) -> RunningComparison:
    """The deployment's comparison. Raises Refused when there is none."""
    if record.comparison is None:
        fix = Fix("begin one", ("peagle", "compare", record.name, "--with", "PAIR|PLAN"))
        raise Refused(f"{record.name} has no comparison in progress", fix, "no-comparison")
    return record.comparison


def candidate_weight(share: float, weight: float) -> float:
    """The candidate's weight for its share of the requests beside a variant of ``weight``."""
    return round(weight * share / (1 - share), 6)


def weights_of(variants: Iterable[Mapping[str, Any]], member: str) -> dict[str, float]:
    """The weights by variant: the ``member`` of a description of variants."""
    return {variant["VariantName"]: variant.get(member) or 0.0 for variant in variants}


def candidate_share(weights: Mapping[str, float]) -> float:
    """The candidate's share of the requests by the weights of the two variants."""
    total = sum(weights.values())
    return round(weights.get(CANDIDATE, 0.0) / total, 6) if total else 0.0


def with_both_variants(
    config: str,
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
        name = serving["EndpointConfigName"]
        message = f"the configuration {name} is not of one variant {VARIANT} with a model"
        raise Refused(message, "deploy the other plan under another --name", "not-comparable")
    first = {**only, "InitialInstanceCount": running or only["InitialInstanceCount"]}
    weight = first.get("InitialVariantWeight") or 1.0
    second = {
        **candidate["ProductionVariants"][0],
        "VariantName": CANDIDATE,
        "InitialVariantWeight": candidate_weight(share, weight),
    }
    kept = {key: serving[key] for key in _OF_ENDPOINT if serving.get(key)}
    return {
        "EndpointConfigName": config,
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
