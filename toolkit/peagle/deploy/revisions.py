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
from typing import Any

from peagle.aws.sagemaker import ID_TAG, Endpoint
from peagle.deploy.state import (
    Deployment,
    Resource,
    ResourceType,
    Revision,
    RunningComparison,
    weight_prefixes,
)
from peagle.errors import Fix, Refused
from peagle.planning.runtime import MAX_NAME_LENGTH
from peagle.proof import Proof
from peagle.render.requests import OWNER_TAG, PROOF_TAG, STACK_TAG, VARIANT

PREVIOUS_TAG = "peagle:previous"
"""Tag of an endpoint with the revision that served before, and its proof."""

COMPARISON_SUFFIX = "-compare"
"""Suffix of the name and the fingerprint of a configuration with two variants."""

CANDIDATE = "Candidate"
"""The variant with the plan that is compared."""

_STACK_TAG_OF_AWS = "aws:cloudformation:stack-name"
"""Set by CloudFormation on the resources of a stack."""

Roles = tuple[Revision | None, Revision | None, Revision | None]
"""The serving, pending and previous revision."""


def proof_tag(
    proof: Proof | None, fingerprint: str, now: float, key: str = PROOF_TAG
) -> dict[str, str]:
    """The tag: ``revision=... passed=yes length=3.41 drafts=220 floor=2.00 source=log time=...``;
    without a ``proof`` only the revision."""
    fields = {"revision": fingerprint}
    if proof is not None:
        fields |= {
            "passed": "yes" if proof.passed else "no",
            "length": "" if proof.acceptance_length is None else f"{proof.acceptance_length:.2f}",
            "drafts": str(proof.drafts),
            "floor": "" if proof.floor is None else f"{proof.floor:.2f}",
            "source": proof.source,
            "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
        }
    return {
        "Key": key,
        "Value": " ".join(f"{name}={text}" for name, text in fields.items() if text),
    }


def revision_in(tags: Mapping[str, str], key: str) -> str:
    """The fingerprint in that tag of an endpoint; empty without one."""
    return _fields(tags, key).get("revision", "")


def proof_in(tags: Mapping[str, str], fingerprint: str) -> Proof | None:
    """The proof of that revision in an endpoint's tags; ``None`` without one, or for a value that
    this version cannot read."""
    proofs = (_fields(tags, key) for key in (PROOF_TAG, PREVIOUS_TAG))
    fields = next((proof for proof in proofs if proof.get("revision") == fingerprint), {})
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


def _fields(tags: Mapping[str, str], key: str) -> dict[str, str]:
    words = (word.partition("=") for word in tags.get(key, "").split())
    return {name: value for name, _, value in words}


def is_comparison(fingerprint: str) -> bool:
    """Whether a configuration with this fingerprint, or this name, has two variants."""
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


def revision_in_service(record: Deployment, config: str) -> Revision | None:
    """The serving or pending revision with that configuration; during a comparison the serving one,
    which has the first variant."""
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
    by_config = {revision.name: revision for revision in reversed(revisions) if revision.name}
    by_fingerprint = {revision.fingerprint: revision for revision in reversed(revisions)}
    proved = by_fingerprint.get(revision_in(tags, PROOF_TAG))
    serving = by_config.get(live.revision) if live else None
    if live and is_comparison(live.revision):
        serving = proved
    if live is None or serving is None:
        return None, revisions[-1] if revisions else None, None
    pending = by_config.get(live.pending_revision or "")
    previous = by_fingerprint.get(revision_in(tags, PREVIOUS_TAG))
    if proved and proved is not serving:  # an update in service whose proof did not pass
        serving, pending = proved, pending or serving
    return serving, pending, None if previous is serving else previous


def rollback_target(record: Deployment) -> Revision | None:
    """What ``peagle rollback`` returns to: with an update that is not finished, or not proved, what
    served before it; else the previous revision. A rollback that was interrupted continues, and one
    whose proof failed is undone."""
    serving, pending, previous = record.serving, record.pending, record.previous
    # Interrupted while what an update had replaced was proved again.
    is_proving = pending is None and serving is not None and serving.proof is None
    if pending is None or rollback_unfinished(record):
        return serving if is_proving and previous else previous
    return serving


def rollback_unfinished(record: Deployment) -> bool:
    """Whether a rollback to the previous revision began and has not ended."""
    pending, previous = record.pending, record.previous
    if pending is None or previous is None or pending.fingerprint != previous.fingerprint:
        return False
    return pending.proof is None or pending.proof.passed


def fields_when_proved(record: Deployment, proved: Revision) -> dict[str, Any]:
    """The record's fields once ``proved`` is in service and proved: what served before becomes the
    previous revision, unless it was never proved and an earlier one was."""
    serving, previous = record.serving, record.previous
    if previous and previous.fingerprint == proved.fingerprint:
        previous = None
    former = None if is_alone(record, proved) else serving
    if former and (former.is_proved or previous is None):
        previous = former
    return {"serving": proved, "pending": None, "previous": previous, "failure": None}


def fields_with_proof(record: Deployment, revision: Revision) -> dict[str, Any]:
    """The record's fields with a new proof of the revision in service, which may have failed."""
    if is_alone(record, revision):
        ends = revision.is_proved and record.pending is None
        return {"serving": revision, **({"failure": None} if ends else {})}
    return fields_when_proved(record, revision) if revision.is_proved else {"pending": revision}


def stale_resources(record: Deployment) -> tuple[Resource, ...]:
    """The resources that no kept revision needs, in the order of removal."""
    kinds: tuple[ResourceType, ...] = ("EndpointConfig", "Model", "S3Objects")
    compared = record.comparison.config if record.comparison else ""
    return tuple(
        resource
        for kind in kinds
        for resource in record.of_type(kind)
        if resource.name != compared
        and not any(_needs(revision, resource) for revision in record.revisions)
    )


def _needs(revision: Revision, resource: Resource) -> bool:
    if resource.type != "S3Objects" or resource.revision == revision.fingerprint:
        names = (revision.model, revision.name, revision.instances_config)
        return resource.revision == revision.fingerprint or resource.name in names
    # Revisions may share a folder of weights, which then names only one of them.
    return any(
        resource.name.startswith(prefix) or prefix.startswith(resource.name)
        for prefix in weight_prefixes(revision.served)
    )


def require_own(deployment: Deployment) -> None:
    """Raise Refused for a deployment that a template owns."""
    if deployment.owner:
        message = f"{deployment.name} belongs to {deployment.owner}, which would undo changes"
        raise Refused(message, "change it there", "other-owner")


def read_owner(tags: Mapping[str, str]) -> str:
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


def require_no_comparison(record: Deployment) -> None:
    """Raise Refused while the endpoint has two variants, or is getting or losing the second one."""
    comparison = record.comparison
    if comparison is None:
        return
    candidate = comparison.candidate
    message = f"{record.name} compares {candidate.name} with what it serves: end that first"
    fix = Fix(
        "let the candidate serve alone with promote, or remove it with drop",
        ("peagle", "drop", record.name),
    )
    if record.pending and record.pending.fingerprint == candidate.fingerprint:
        message = f"the promotion of {candidate.name} on {record.name} has not ended"
        fix = Fix("finish it", ("peagle", "promote", record.name))
    raise Refused(message, fix, "comparison-runs")


def required_comparison(record: Deployment) -> RunningComparison:
    """The deployment's comparison. Raises Refused when there is none."""
    if record.comparison is None:
        fix = Fix("begin one", ("peagle", "compare", record.name, "--with", "PAIR|PLAN"))
        raise Refused(f"{record.name} has no comparison in progress", fix, "no-comparison")
    return record.comparison


def candidate_weight(share: float, weight: float) -> float:
    """The candidate's weight for its share of the requests beside a variant of ``weight``."""
    return round(weight * share / (1 - share), 6)


def read_variant_weights(variants: Iterable[Mapping[str, Any]], member: str) -> dict[str, float]:
    """The weights by variant: the ``member`` of a description of variants."""
    return {variant["VariantName"]: variant.get(member) or 0.0 for variant in variants}


def candidate_share(weights: Mapping[str, float]) -> float:
    """The candidate's share of the requests by the weights of the two variants."""
    total = sum(weights.values())
    return round(weights.get(CANDIDATE, 0.0) / total, 6) if total else 0.0


def of_variant(live: Endpoint, variant: str) -> Endpoint:
    """The endpoint with the instances of one variant only."""
    return replace(live, running={variant: live.running.get(variant, 0)})


def compares_now(record: Deployment, live: Endpoint | None) -> RunningComparison | None:
    """The comparison, if the endpoint has both variants."""
    comparison = record.comparison
    return comparison if live and comparison and live.revision == comparison.config else None


def compute_usd_per_hour(record: Deployment, live: Endpoint) -> dict[str, float | None]:
    """Variant -> price per hour of its instances that run, or are configured; ``None``: unknown."""
    assert record.comparison is not None
    assert record.serving is not None
    revisions = {VARIANT: record.serving, CANDIDATE: record.comparison.candidate}
    return {
        name: revision.served.with_instances(
            live.running.get(name) or revision.served.instance_count
        ).usd_per_hour
        for name, revision in revisions.items()
    }
