"""Deploy: apply the steps that preflight found necessary, prove, remove what is stale.

apply          weights -> model -> configuration -> endpoint -> in service
prove          raises NotProved unless drafts are accepted; the endpoint stays, as Unproved
remove_stale   deletes what only earlier revisions need
"""

from __future__ import annotations

from peagle import proof
from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AccessDenied
from peagle.deploy import steps
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.desired import DesiredState
from peagle.deploy.preflight import Preflight
from peagle.deploy.proving import prove_endpoint, tag_proof
from peagle.deploy.state import Deployment, Failure
from peagle.errors import PeagleError


def deploy(
    aws: Aws,
    found: Preflight,
    observe: Observer = unobserved,
    wait: bool = True,
    clock: Clock | None = None,
) -> Deployment:
    """Apply the change that ``preflight`` found, prove it, and remove what is stale; returns the
    record. Raises what ``apply`` and ``prove`` do.

    Without ``wait`` it returns once the endpoint is requested; the next deploy continues.
    """
    name = found.desired.plan.name
    record = found.record or Deployment(
        name=name, scope=aws.scope, account=aws.account, region=aws.region
    )
    context = DeploymentContext(aws, record, observe, clock or Clock())
    if found.change != "nothing":
        started = apply(context, found.desired, wait)
        if wait:
            prove(context, found.desired, started)
    if wait:
        remove_stale(context, found.desired)
    return context.record


def apply(context: DeploymentContext, desired: DesiredState, wait: bool = True) -> float:
    """Bring ``desired`` into service. Raises what a step raises, and records the failure.

    Every step may be repeated, so the same call continues an interrupted deployment. Returns when
    SageMaker began the update, in epoch seconds; 0 for a new endpoint, or where that is unknown.
    """
    serving = context.record.serving
    known = serving and serving.fingerprint == desired.fingerprint
    context.change(pending=serving if known else desired.revision, failure=None)
    try:
        steps.upload_weights(context, desired)
        steps.create_model(context, desired)
        steps.create_config(context, desired)
        steps.put_endpoint(context, desired)
        return steps.wait_in_service(context, desired) if wait else 0.0
    except PeagleError as error:
        context.change(failure=Failure.of(error))
        raise


def prove(context: DeploymentContext, desired: DesiredState, started: float = 0.0) -> None:
    """Prove that the endpoint in service speculates; raise NotProved if it does not.

    In both cases the revision is recorded as serving. ``started`` is when it was requested, in
    epoch seconds, where that is known.
    """
    revision = desired.revision
    context.say("Proving", f"{len(desired.plan.proof.prompts)} prompts")
    context.change(serving=revision, pending=None, failure=None)
    try:
        proved = prove_endpoint(
            context.aws,
            desired.plan,
            context.record.name,
            clock=context.clock,
            say=lambda line: context.say("Proving", line, lasting=True),
            revision_started=started,
        )
        context.change(serving=revision.model_copy(update={"proof": proved}))
        live = sagemaker.describe(context.aws, context.record.name)
        tag_proof(context.aws, live, proved, revision.fingerprint, context.clock)
        proof.require_passed(proved, desired.plan.pair, context.record.name)
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
            try:
                steps.remove_resource(context, resource)
            except AccessDenied as denied:
                context.say("Kept", f"{resource.type} {resource.name}: {denied.message}")
