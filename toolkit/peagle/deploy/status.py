"""The state of a deployment, for people and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import Endpoint
from peagle.deploy import state
from peagle.deploy.state import Deployment, Revision
from peagle.planning.plan import Plan
from peagle.protocol import ENGINE_TAG, STAND_IN_TAG
from peagle.store import SANDBOX


def state_of(record: Deployment, live: Endpoint | None) -> str:
    """SageMaker's status of the endpoint, or one of ours:

    ``Incomplete``  deploy was interrupted before it requested the endpoint
    ``Missing``     the endpoint was in service, and was deleted without `peagle destroy`
    ``Unproved``    it is in service, but its acceptance is not proved
    """
    if live is None:
        return "Missing" if record.serving else "Incomplete"
    if live.status != "InService":
        return live.status
    proof = record.serving.proof if record.serving else None
    proved = proof is not None and proof.passed and _serves(record, live)
    return "InService" if proved else "Unproved"


def _serves(record: Deployment, live: Endpoint) -> bool:
    """Whether the endpoint runs the configuration that was put into service last."""
    return record.serving is not None and record.serving.config == live.config


def shown_revision(record: Deployment, live: Endpoint | None) -> Revision:
    """The revision in service, or the pending one when none is."""
    if live and record.serving and _serves(record, live):
        return record.serving
    return record.current


def deployment_status(aws: Aws, record: Deployment) -> dict[str, Any]:
    """The JSON document of ``deploy`` and ``status``. Raises CloudError."""
    live = sagemaker.describe(aws, record.name)
    revision = shown_revision(record, live)
    plan, served, proof = revision.plan, revision.served, revision.proof
    engine = sandbox_engine(aws, live)
    failure = record.failure
    return {
        "name": record.name,
        "state": state_of(record, live),
        "pair": served.pair,
        "region": record.region,
        "account": record.account,
        "sandbox": record.scope == SANDBOX,
        "acceptance_length": proof.acceptance_length if proof else None,
        "acceptance_per_position": list(proof.acceptance_per_position) if proof else [],
        "acceptance_floor": _floor(plan),
        "drafts": proof.drafts if proof else None,
        "proved": bool(proof and proof.passed),
        "openai_base_url": aws.openai_base_url(record.name),
        "price_per_hour_usd": served.usd_per_hour,
        "price_date": served.price_date,
        "instance_type": served.instance_type,
        "instance_count": served.instance_count,
        "vllm": served.vllm,
        "vllm_here": engine.vllm,
        "speculation": served.k > 0,
        "k": served.k or None,
        "stand_in": engine.stand_in,
        "endpoint_status": live.status if live else None,
        "endpoint_config": live.config if live else None,
        "failure_reason": (live.failure if live else None) or (failure and failure.message),
        "failure_fix": (failure and failure.fix) or None,
        "failure_command": list(failure.command) if failure and failure.command else None,
        "role": revision.role,
        "fingerprint": revision.fingerprint,
        "billing_since": record.billing_since,
        "resources": [
            {"type": resource.type, "name": resource.name, "confirmed": resource.made}
            for resource in record.resources
        ],
    }


def _floor(plan: Plan | None) -> float | None:
    return plan.speculation.acceptance_floor if plan and plan.speculation else None


def list_deployments(aws: Aws, region: str | None = None) -> list[dict[str, Any]]:
    """The rows of ``list``: the account's deployments in ``region``, or in all regions."""
    rows = []
    for record in state.all_records(aws.scope):
        if region not in (None, record.region):
            continue
        there = aws.in_region(record.region)
        live = sagemaker.describe(there, record.name)
        revision = shown_revision(record, live)
        rows.append(
            {
                "name": record.name,
                "state": state_of(record, live),
                "region": record.region,
                "pair": revision.served.pair,
                "price_per_hour_usd": usd_per_hour(record),
                "acceptance_length": revision.proof.acceptance_length if revision.proof else None,
                "speculation": revision.served.k > 0,
                "stand_in": sandbox_engine(there, live).stand_in,
            }
        )
    return rows


@dataclass(frozen=True)
class SandboxEngine:
    """What the sandbox runs instead of the plan: a stand-in, another version of vLLM."""

    stand_in: str | None = None
    vllm: str | None = None


def sandbox_engine(aws: Aws, live: Endpoint | None) -> SandboxEngine:
    """Read from the endpoint's tags; empty without an endpoint or when tags may not be read."""
    if live is None:
        return SandboxEngine()
    try:
        tags = sagemaker.tags_of(aws, live.arn)
    except AccessDenied:
        return SandboxEngine()
    engine = tags.get(ENGINE_TAG)
    return SandboxEngine(tags.get(STAND_IN_TAG), engine.removeprefix("vllm ") if engine else None)


def stand_in_of(aws: Aws, name: str) -> str | None:
    """What the sandbox serves instead of the endpoint's target; ``None`` if it serves that."""
    return sandbox_engine(aws, sagemaker.describe(aws, name)).stand_in


def usd_per_hour(record: Deployment) -> float | None:
    """Current cost of the deployment: zero without an endpoint; ``None`` when unknown.

    An endpoint that was requested counts: it may exist.
    """
    if not record.of_type("Endpoint"):
        return 0.0
    return record.current.served.usd_per_hour


def endpoint_created(aws: Aws, name: str) -> float | None:
    """When SageMaker created the endpoint, in epoch seconds; ``None`` without such an endpoint.

    Raises CloudError.
    """
    live = sagemaker.describe(aws, name)
    return live.created if live else None
