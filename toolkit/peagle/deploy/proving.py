"""What is proved of an endpoint: of a plan, of a deployment, or of any endpoint of the account."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import Endpoint
from peagle.catalog.find import pair_name
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.deploy import state
from peagle.deploy.live import served_live
from peagle.deploy.proof_tag import PREVIOUS_TAG, proof_tag
from peagle.deploy.prover import ProofRequest, Prover
from peagle.deploy.revisions import fields_with_proof, revision_in_service
from peagle.deploy.served import Served
from peagle.deploy.state import Deployment, Revision
from peagle.errors import Fix, NotFound, NotProved
from peagle.planning.plan import Plan
from peagle.planning.runtime import proof_source
from peagle.planning.speculation import floor_of
from peagle.proof import MIN_DRAFTS, Proof
from peagle.render.requests import tag_value

Say = Callable[[str], object]

DEFAULT_PROMPTS = (
    "Explain in simple words why the sky is blue during the day and red in the evening.",
    "Write a Python function for the n-th Fibonacci number without recursion, and explain it.",
    "Write a short e-mail that moves a meeting from Tuesday to Thursday and asks for confirmation.",
)
"""For an endpoint whose pair the catalogue does not have; sent as chats."""

DEFAULT_MAX_TOKENS = 128


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
    """Prove that the endpoint ``name`` speculates, whoever made it.

    With a ``record`` of the revision in service, its plan says what to prove, and the proof is
    recorded if it is by the plan's own standard. Otherwise prompts and floor come from the
    catalogue, for the pair in the endpoint's tag. ``floor`` and ``min_drafts`` replace the pair's
    floor and the number of drafts of each instance. A proof that fails is returned too:
    ``require_passed`` raises for it.

    Raises NotFound without such an endpoint, NotProved for a ``floor`` of one that does not
    speculate, and what ``Prover.prove`` raises.
    """
    live = sagemaker.describe(aws, name)
    if live is None:
        raise NotFound(
            f"there is no endpoint {name!r} in {aws.region}",
            Fix("list the deployments", ("peagle", "list")),
        )
    served = revision_in_service(record, live.config) if record else None
    plan = served.plan if served else None
    if plan:
        request = request_of_plan(plan, name)
    else:
        request = request_of_served(served_live(aws, live, _tags(aws, live)), catalog)
    if floor is not None:
        if not request.speculates:
            raise NotProved(
                f"{name} does not speculate, so it has no acceptance length",
                "leave out --floor to prove only that it answers",
                code="no-speculation",
            )
        request = replace(request, floor=floor, floor_is_set=True)
    proved = Prover(aws, clock or Clock(), say).prove(replace(request, min_drafts=min_drafts))
    if record and served and floor is None and min_drafts >= MIN_DRAFTS:
        revision = served.model_copy(update={"proof": proved})
        _record(aws, record, live, revision, clock or Clock())
    return proved


def request_of_plan(plan: Plan, name: str, revision_started: float = 0.0) -> ProofRequest:
    """The proof that ``plan`` asks for, of the endpoint ``name``."""
    settings, speculation = plan.proof, plan.speculation
    return ProofRequest(
        name=name,
        prompts=settings.prompts,
        chat=settings.chat,
        max_tokens=settings.max_tokens,
        speculates=speculation is not None,
        floor=speculation.acceptance_floor if speculation else None,
        source=settings.source,
        pair=plan.pair,
        revision_started=revision_started,
    )


def request_of_served(served: Served, catalog: Catalog) -> ProofRequest:
    """The proof of an endpoint without a plan: with the catalogue's prompts and floor for its pair,
    else with default prompts and no floor."""
    target, drafter = _find_pair(served.pair, catalog)
    settings = target.proof if target else None
    return ProofRequest(
        name=served.name,
        prompts=settings.prompts if settings else DEFAULT_PROMPTS,
        chat=settings.chat if settings else True,
        max_tokens=settings.max_tokens if settings else DEFAULT_MAX_TOKENS,
        speculates=served.k > 0,
        floor=floor_of(drafter, served.k) if drafter and served.k else None,
        source=proof_source(served.image, catalog.runtimes),
        pair=served.pair or "PAIR",
    )


def _tags(aws: Aws, live: Endpoint) -> dict[str, str]:
    """The endpoint's tags; none where they may not be read: its pair is unknown then."""
    try:
        return sagemaker.tags_of(aws, live.arn)
    except AccessDenied:
        return {}


def _find_pair(tagged: str, catalog: Catalog) -> tuple[Target | None, Drafter | None]:
    """The target and drafter of a pair, as the value of a tag; a target alone where the drafter is
    the user's own."""
    for target_id in catalog.targets:
        value = tag_value(target_id)
        if tagged != value and not tagged.startswith(f"{value}+"):
            continue
        target = catalog.targets[target_id]
        for drafter in target.drafters:
            if tag_value(pair_name(target, drafter)) == tagged:
                return target, drafter
        return target, None
    return None, None


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
    has changed that meanwhile. An update that was kept unproved is settled by a proof that
    passes."""
    fields = fields_with_proof(record, revision)
    if "pending" not in fields or fields["pending"] is None:
        tag_proofs(aws, live, revision, fields.get("previous", record.previous), clock)
    with state.deployment_lock(record.scope, record.region, record.name):
        now = state.load_record(record.scope, record.region, record.name)
        found = revision_in_service(now, live.config) if now else None
        if now and found and found.fingerprint == revision.fingerprint:
            state.save(now.model_copy(update=fields_with_proof(now, revision)))
