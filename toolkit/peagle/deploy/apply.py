"""Deploy: compare the record with the endpoint, apply the steps, prove, remove what is stale.

change_of      nothing | prove | create | update
apply          weights -> model -> configuration -> endpoint -> in service
prove          raises NotProved unless drafts are accepted; the endpoint stays, as Unproved
remove_stale   deletes what only earlier revisions need
"""

from __future__ import annotations

from typing import Any, Literal

from peagle import proof
from peagle.aws import runtime, sagemaker
from peagle.aws.client import Aws
from peagle.aws.errors import EngineRejected
from peagle.aws.sagemaker import BROKEN, Endpoint
from peagle.deploy import steps
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.state import Deployment, Failure
from peagle.deploy.status import sandbox_engine
from peagle.errors import Fix, NotProved, PeagleError
from peagle.planning.plan import Plan
from peagle.proof import Proof
from peagle.protocol import Counters, piece_of, request_body

Change = Literal["nothing", "prove", "create", "update"]


def change_of(record: Deployment | None, live: Endpoint | None, desired: DesiredState) -> Change:
    """What deploying ``desired`` would do."""
    if record is None or live is None or live.status in (*BROKEN, "Deleting"):
        return "create"
    if desired.config_name not in (live.config, live.pending_config):
        return "update"
    if live.status == "Creating":
        return "create"
    if live.status != "InService":
        return "update"
    serving = record.serving
    if serving is None or serving.fingerprint != desired.fingerprint or record.pending:
        return "prove"
    return "nothing" if serving.proof and serving.proof.passed else "prove"


def deploy(
    context: DeploymentContext, change: Change, desired: DesiredState, wait: bool = True
) -> None:
    """Apply the change, prove it, and remove what is stale. Raises what ``apply`` and ``prove`` do.

    Without ``wait`` it returns once the endpoint is requested; the next deploy continues.
    """
    if change != "nothing":
        apply(context, desired, wait)
        if wait:
            prove(context, desired)
    if wait:
        remove_stale(context, desired)


def apply(context: DeploymentContext, desired: DesiredState, wait: bool = True) -> None:
    """Bring ``desired`` into service. Raises what a step raises, and records the failure.

    Every step may be repeated, so the same call continues an interrupted deployment.
    """
    serving = context.record.serving
    known = serving and serving.fingerprint == desired.fingerprint
    context.change(pending=serving if known else desired.revision, failure=None)
    try:
        steps.upload_weights(context, desired)
        steps.create_model(context, desired)
        steps.create_config(context, desired)
        steps.put_endpoint(context, desired)
        if wait:
            steps.wait_in_service(context, desired)
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        raise


def prove(context: DeploymentContext, desired: DesiredState) -> None:
    """Prove that the endpoint in service speculates; raise NotProved if it does not.

    In both cases the revision is recorded as serving.
    """
    revision = desired.revision
    context.say("Proving", f"{len(desired.plan.proof.prompts)} prompts")
    context.change(serving=revision, pending=None, failure=None)
    try:
        proved = prove_endpoint(context.aws, desired.plan, context.record.name)
        context.change(serving=revision.model_copy(update={"proof": proved}))
        proof.require_passed(proved)
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        remove_stale(context, desired)
        raise


def remove_stale(context: DeploymentContext, desired: DesiredState) -> None:
    """Remove what only earlier revisions need, once the endpoint serves this one."""
    stale = [
        resource
        for kind in ("EndpointConfig", "Model", "S3Objects")
        for resource in context.record.of_type(kind)
        if resource.revision != desired.fingerprint
    ]
    live = sagemaker.describe(context.aws, context.record.name) if stale else None
    if live and live.status == "InService" and live.config == desired.config_name:
        for resource in stale:
            steps.remove_resource(context, resource)


def prove_endpoint(aws: Aws, plan: Plan, name: str) -> Proof:
    """Send the plan's prompts and compare the engine's counters before and after. Without
    speculation, any non-empty answer passes.

    The acceptance of a stand-in says nothing about the pair, so the pair's floor does not apply
    to it. Raises NotProved when the image exposes no counters or refuses a prompt, and EngineError
    when the endpoint does not answer.
    """
    if plan.speculation is None:
        return _prove_answer(aws, plan, name)
    readings = 0

    def read_counters() -> Counters:
        """With several instances, each reading may come from any of them.

        Two readings cannot be subtracted then, so the first one counts as zero, and the last one
        is that of the engine which has drafted most since it started.
        """
        nonlocal readings
        readings += 1
        if plan.instance_count == 1:
            return _counters(aws, plan, name)
        samples = 1 if readings == 1 else 4 * plan.instance_count
        best = max(
            (_counters(aws, plan, name) for _ in range(samples)), key=lambda read: read.drafts
        )
        return best.since(best) if readings == 1 else best

    is_stand_in = sandbox_engine(aws, sagemaker.describe(aws, name)).stand_in is not None
    return proof.prove(
        lambda body: _ask(aws, name, body),
        read_counters,
        prompts=plan.proof.prompts,
        chat=plan.proof.chat,
        max_tokens=plan.proof.max_tokens,
        floor=None if is_stand_in else plan.speculation.acceptance_floor,
    )


def _prove_answer(aws: Aws, plan: Plan, name: str) -> Proof:
    settings = plan.proof
    body = request_body(settings.prompts[0], chat=settings.chat, max_tokens=settings.max_tokens)
    if not piece_of(_ask(aws, name, body)).text:
        raise NotProved(
            f"{name} returned an empty answer",
            Fix("read the log", ("peagle", "logs", name)),
            code="empty-answer",
        )
    return Proof(None, 0, (), None, passed=True)


def _ask(aws: Aws, name: str, body: dict[str, Any]) -> dict[str, Any]:
    try:
        return runtime.ask(aws, name, body)
    except EngineRejected as error:
        raise NotProved(
            f"the engine rejected a proof prompt: {error.message}",
            "if the prompt exceeds the context, deploy with a larger --max-model-len",
            code="proof-prompt-rejected",
        ) from error


def _counters(aws: Aws, plan: Plan, name: str) -> Counters:
    counters = runtime.counters(aws, name)
    if counters is None:
        raise NotProved(
            f"the image of {name} exposes no speculation counters",
            Fix(
                "build and push an image with counters, then deploy it with --image URI",
                ("peagle", "image", "build", plan.pair, "--push"),
            ),
            code="no-speculation-counters",
        )
    return counters
