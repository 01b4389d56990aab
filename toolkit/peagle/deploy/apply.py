"""Deploy: compare the record with the endpoint, apply the steps, prove, remove what is stale.

required_change      nothing | prove | create | update
apply          weights -> model -> configuration -> endpoint -> in service
prove          raises NotProved unless drafts are accepted; the endpoint stays, as Unproved
remove_stale   deletes what only earlier revisions need
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

from peagle import proof
from peagle.aws import sagemaker
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import BROKEN, Endpoint
from peagle.deploy import steps
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.proof_tag import proof_tag
from peagle.deploy.proving import prove_endpoint
from peagle.deploy.state import Deployment, Failure
from peagle.errors import PeagleError
from peagle.proof import Proof

Change = Literal["nothing", "prove", "create", "update"]


def required_change(
    record: Deployment | None, live: Endpoint | None, desired: DesiredState
) -> Change:
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
        tag_proof(context, proved, revision.fingerprint)
        proof.require_passed(proved)
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        remove_stale(context, desired)
        raise


def tag_proof(context: DeploymentContext, proved: Proof, fingerprint: str) -> None:
    """Record the proof as a tag of the endpoint, for other machines; the record has it in any
    case."""
    live = sagemaker.describe(context.aws, context.record.name)
    with suppress(AccessDenied):
        if live:
            tag = proof_tag(proved, fingerprint, context.clock.now())
            sagemaker.retag(context.aws, live.arn, [tag])


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
