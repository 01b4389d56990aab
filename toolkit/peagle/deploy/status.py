"""What there is to say about a deployment, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peagle.aws import sagemaker as endpoints
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import Endpoint
from peagle.deploy.state import Deployment, Generation


def state_of(record: Deployment, live: Endpoint | None) -> str:
    """SageMaker's state of the endpoint, or one of ours:

    ``Incomplete``  deploy was interrupted before it asked for the endpoint
    ``Missing``     the endpoint was in service, and is gone without `peagle destroy`
    ``Unproved``    it is in service, but was not seen to speculate as it should
    """
    if live is None:
        return "Missing" if record.serving else "Incomplete"
    if live.status != "InService":
        return live.status
    proof = record.serving.proof if record.serving else None
    proved = proof is not None and proof.passed and serves(record, live)
    return "InService" if proved else "Unproved"


def serves(record: Deployment, live: Endpoint) -> bool:
    """Whether the endpoint runs the configuration that was put into service last."""
    return record.serving is not None and record.serving.config == live.config


def shown_generation(record: Deployment, live: Endpoint | None) -> Generation:
    """The plan that serves, or the one that deploy was working on when none does."""
    if live and record.serving and serves(record, live):
        return record.serving
    return record.current


def document(aws: Aws, record: Deployment, live: Endpoint | None) -> dict[str, Any]:
    """The JSON of ``deploy`` and ``status``."""
    generation = shown_generation(record, live)
    plan, proof = generation.plan, generation.proof
    told = told_by_sandbox(aws, live)
    return {
        "name": record.name,
        "state": state_of(record, live),
        "pair": plan.pair,
        "region": record.region,
        "account": record.account,
        "sandbox": record.scope == "sandbox",
        "acceptance_length": proof.acceptance_length if proof else None,
        "acceptance_per_position": list(proof.acceptance_per_position) if proof else [],
        "acceptance_floor": plan.speculation.acceptance_floor if plan.speculation else None,
        "drafts": proof.drafts if proof else None,
        "proved": bool(proof and proof.passed),
        "openai_base_url": aws.openai_base_url(record.name),
        "price_per_hour_usd": plan.price_per_hour_usd,
        "price_date": plan.price_date,
        "instance_type": plan.instance_type,
        "instance_count": plan.instance_count,
        "vllm": plan.runtime.vllm,
        "vllm_here": told.vllm,
        "speculation": plan.speculation is not None,
        "k": plan.speculation.k if plan.speculation else None,
        "stand_in": told.stand_in,
        "endpoint_status": live.status if live else None,
        "endpoint_config": live.config if live else None,
        "failure_reason": (live.failure if live else None) or record.failure,
        "role": generation.role,
        "fingerprint": generation.fingerprint,
        "billing_since": record.billing_since,
        "resources": [
            {"type": resource.type, "name": resource.name, "confirmed": resource.made}
            for resource in record.resources
        ],
    }


@dataclass(frozen=True)
class Told:
    """What the sandbox runs instead of what was planned: a stand-in, another version of vLLM."""

    stand_in: str | None = None
    vllm: str | None = None


def told_by_sandbox(aws: Aws, live: Endpoint | None) -> Told:
    """Read from the endpoint's tags; nothing where there is none, or tags may not be read."""
    if live is None:
        return Told()
    try:
        tags = endpoints.tags_of(aws, live.arn)
    except AccessDenied:
        return Told()
    engine = tags.get(endpoints.ENGINE_TAG)
    return Told(tags.get(endpoints.STAND_IN_TAG), engine.removeprefix("vllm ") if engine else None)


def usd_per_hour(record: Deployment) -> float | None:
    """What the deployment costs now: nothing without an endpoint; ``None`` when not known.

    An endpoint that was only asked for is counted: it may be there.
    """
    if not record.of_type("Endpoint"):
        return 0.0
    return record.current.plan.price_per_hour_usd
