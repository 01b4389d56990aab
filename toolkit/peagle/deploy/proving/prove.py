"""Prove a revision of a deployment, or any endpoint of the account, and record the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import Endpoint
from peagle.catalog.schema import Catalog
from peagle.deploy import records
from peagle.deploy.context import DeploymentContext
from peagle.deploy.live import served_live
from peagle.deploy.proof_tag import PREVIOUS_TAG, proof_tag
from peagle.deploy.proving.prover import Prover
from peagle.deploy.proving.request import ProofRequest, request_of_plan, request_of_served
from peagle.deploy.revisions import fields_with_proof, revision_in_service
from peagle.deploy.state import Deployment, Revision
from peagle.deploy.variants import compares_now
from peagle.deploy.wake_up import WakeUpOptions, wake
from peagle.errors import Fix, NotFound, NotProved
from peagle.proof import MIN_DRAFTS, Proof
from peagle.render.requests import VARIANT

Say = Callable[[str], object]


def prove(
    aws: Aws,
    name: str,
    catalog: Catalog,
    record: Deployment | None = None,
    *,
    floor: float | None = None,
    min_drafts: int = MIN_DRAFTS,
    say: Say = lambda line: None,
    clock: Clock | None = None,
) -> Proof:
    """Prove that the endpoint ``name`` speculates, also one of a template or another machine.

    With a ``record`` of the revision in service, its plan says what to prove, and the proof is
    recorded if it is by the plan's own standard. Otherwise prompts and floor come from the
    catalogue, for the pair in the endpoint's tag. ``floor`` and ``min_drafts`` replace the pair's
    floor and the number of drafts of each instance. A proof that fails is returned too:
    ``require_passed`` raises for it. An endpoint that scaled to zero is woken first.

    Raises NotFound without such an endpoint, NotAwake for one that does not wake up, NotProved for
    a ``floor`` of one that does not speculate, and what ``Prover.prove`` raises.
    """
    live = sagemaker.describe(aws, name)
    if live is None:
        raise NotFound(
            f"there is no endpoint {name!r} in {aws.region}",
            Fix("list the deployments", ("peagle", "list")),
            code="no-such-endpoint",
        )
    wake_up = WakeUpOptions(on_progress=lambda progress: say(progress.text), clock=clock or Clock())
    if wake(aws, live, record, wake_up) is not None:
        live = sagemaker.describe(aws, name) or live
    served = revision_in_service(record, live.revision) if record else None
    request = _request(aws, live, served, catalog, floor)
    variant = VARIANT if record and compares_now(record, live) else None
    request = replace(request, min_drafts=min_drafts, variant=variant)
    proved = Prover(aws, clock or Clock(), say).prove(request)
    if record and served and floor is None and min_drafts >= MIN_DRAFTS:
        revision = served.model_copy(update={"proof": proved})
        _record(aws, record, live, revision, clock or Clock())
    return proved


def _request(
    aws: Aws, live: Endpoint, served: Revision | None, catalog: Catalog, floor: float | None
) -> ProofRequest:
    """What to prove of the endpoint that serves ``served``; raises NotProved for a ``floor`` of one
    that does not speculate."""
    if served and served.plan:
        request = request_of_plan(served.plan, live.name)
    else:
        request = request_of_served(
            served_live(aws, live, sagemaker.readable_tags(aws, live) or {}), catalog
        )
    if floor is None:
        return request
    if not request.speculates:
        raise NotProved(
            f"{live.name} does not speculate, so it has no acceptance length",
            "leave out --floor to prove only that it answers",
            code="no-speculation",
        )
    return replace(request, floor=floor, floor_source="option")


def request_of_revision(revision: Revision, catalog: Catalog) -> ProofRequest:
    """The proof of a revision by its plan; ``catalog`` says what to prove of one without, which
    another machine deployed."""
    if revision.plan:
        return request_of_plan(revision.plan, revision.served.name)
    return request_of_served(revision.served, catalog)


def prove_request(context: DeploymentContext, request: ProofRequest, started: float = 0.0) -> Proof:
    """Prove ``request`` of the endpoint that the context works on; a proof that fails is returned
    too. ``started`` is when the update to what serves began, in epoch seconds.

    Raises what ``Prover.prove`` raises.
    """
    request = replace(request, name=context.record.name, revision_started=started)
    context.say("Proving", f"{len(request.prompts)} prompts")
    prover = Prover(
        context.aws, context.clock, lambda line: context.say("Proving", line, lasting=True)
    )
    return prover.prove(request)


def tag_proofs(
    aws: Aws, live: Endpoint | None, proved: Revision, previous: Revision | None, clock: Clock
) -> None:
    """Record the proof, and the previous revision with its own, as tags of the endpoint, for other
    machines; the record has them in any case."""
    if live is None or proved.proof is None:
        return
    now = clock.now()
    tags = [proof_tag(proved.proof, proved.fingerprint, now)]
    if previous:
        tags.append(proof_tag(previous.proof, previous.fingerprint, now, PREVIOUS_TAG))
    with suppress(AccessDenied):
        sagemaker.retag(aws, live.arn, tags)


def _record(aws: Aws, record: Deployment, live: Endpoint, revision: Revision, clock: Clock) -> None:
    """Write the proof of the revision in service to the tags and the record, unless another command
    has changed that meanwhile. A proof that passes ends an update that was kept
    unproved."""
    fields = fields_with_proof(record, revision)
    if "pending" not in fields or fields["pending"] is None:
        tag_proofs(aws, live, revision, fields.get("previous", record.previous), clock)
    with records.deployment_lock(record.scope, record.region, record.name):
        now = records.load_record(record.scope, record.region, record.name)
        found = revision_in_service(now, live.revision) if now else None
        if now and found and found.fingerprint == revision.fingerprint:
            records.save(now.model_copy(update=fields_with_proof(now, revision)))
