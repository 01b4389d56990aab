"""Which revision a deployment serves, keeps and returns to. Pure: reads and changes nothing.

``serving`` is the last revision that was put into service and proved, or the first one;
``pending`` the one being applied, or in service and not proved; ``previous`` what served before
``serving``. They change together, when a proof passes. So an interruption leaves ``pending``:
deploying that plan again continues it, and a rollback returns to ``serving``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from peagle.aws.sagemaker import Endpoint
from peagle.deploy.proof_tag import PREVIOUS_TAG, revision_in
from peagle.deploy.served import weight_prefixes
from peagle.deploy.state import Deployment, Failure, Resource, ResourceType, Revision
from peagle.planning.plan import Plan
from peagle.planning.runtime import MAX_NAME_LENGTH
from peagle.render.requests import PROOF_TAG, image_arguments, plan_arguments

_OF_REVISIONS: tuple[ResourceType, ...] = (
    "EndpointConfig",
    "Model",
    "S3Objects",
)
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
    found = (record.serving, record.pending)
    return next((one for one in found if one and one.name == config), None)


def shown_revision(record: Deployment, live: Endpoint | None) -> Revision:
    """The revision in service, or the pending one when none is."""
    return (live and revision_in_service(record, live.revision)) or record.current


def is_alone(record: Deployment, revision: Revision) -> bool:
    """Whether no other revision serves: the first one, or the one in service again."""
    return record.serving is None or record.serving.fingerprint == revision.fingerprint


def revision_to_return_to(record: Deployment, failed: Revision) -> Revision | None:
    """What a failed proof of ``failed`` returns to by itself: what was proved before it."""
    serving = record.serving
    if serving is None or is_alone(record, failed) or not is_proved(serving):
        return None
    return serving


def roles_by_tags(
    revisions: Sequence[Revision], live: Endpoint | None, tags: Mapping[str, str]
) -> Roles:
    """The roles of the revisions of a deployment without a record. ``revisions`` are in the order
    of creation, ``tags`` those of the endpoint."""

    def tagged(key: str) -> Revision | None:
        fingerprint = revision_in(tags, key)
        return next((one for one in revisions if one.fingerprint == fingerprint), None)

    def of_config(config: str | None) -> Revision | None:
        return next((one for one in revisions if config and one.name == config), None)

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
    for one in (record.serving, record.previous):
        if one and record.returning_to and one.fingerprint == record.returning_to:
            return one
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
        plan = record.current.plan
        return Failure(
            message="no endpoint was requested yet: the deploy was interrupted, or still runs",
            fix="continue it" if plan else "continue it with the same deploy command",
            command=deploy_command(plan) if plan else (),
        )
    if live is not None and rollback_unfinished(record):
        name = record.current.name
        return Failure(
            message=f"the rollback to {name} is not proved: it was interrupted, or still runs",
            fix="finish it",
            command=("peagle", "rollback", record.name),
        )
    if live is not None and rollback_unreported(record):
        name = record.current.name
        return Failure(
            message=f"the rollback to {name} was interrupted at its end, or still runs",
            fix="finish it",
            command=("peagle", "rollback", record.name),
        )
    return None


def deploy_command(plan: Plan) -> tuple[str, ...]:
    """The command that deploys the plan again, with its image if the user chose that."""
    return ("peagle", "deploy", *plan_arguments(plan), *image_arguments(plan))


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
            resource.name.startswith(one) or one.startswith(resource.name) for one in prefixes
        )
    return resource.name in (revision.model, revision.name, revision.instances_config)
