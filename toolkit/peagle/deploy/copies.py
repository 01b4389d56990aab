"""The copies of a model on an endpoint's instances: create, update and remove the component.

The endpoint is created first, with instances and no model. An update replaces the copies' model on
the same instances, and what served before serves until the new copies do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peagle.aws import autoscaling, components, sagemaker
from peagle.aws.errors import Busy
from peagle.aws.sagemaker import BROKEN, ID_TAG, Endpoint
from peagle.deploy import alarms
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.scaling import kept_copies
from peagle.deploy.state import Revision
from peagle.deploy.wait import EndpointLog, not_in_service, wait_while_busy
from peagle.findings import Finding, error
from peagle.render.requests import REVISION_TAG, requests


def instance_findings(desired: DesiredState, live: Endpoint | None) -> Iterator[Finding]:
    """The error that an update would change the instances on which copies run, or turn an endpoint
    with copies into one without, which SageMaker does not do."""
    if live is None or live.status in BROKEN:  # then it is created again
        return
    if not (live.hosts_components or desired.component):
        return
    if live.endpoint_config == desired.config["EndpointConfigName"]:
        return
    message = (
        f"the endpoint {live.name} runs on other instances, or without copies, and an update of an "
        "endpoint with copies replaces their model only"
    )
    fix = "choose another --name and destroy this one afterwards, or destroy it first"
    if not live.hosts_components:
        fix = f"use --copies 1 for one engine on each instance, {fix}"
    yield error("copies-fixed-instances", "name", message, fix)


def put_copies(
    context: DeploymentContext,
    revision: Revision,
    request: dict[str, Any],
    rolled_out: bool = False,
) -> None:
    """Create the component of ``request``, CreateInferenceComponent, or update it to that model,
    unless SageMaker is already doing so. Waits for the instances first. With ``rolled_out``, an
    update has the rollout of the revision's plan."""
    live = sagemaker.describe(context.aws, context.record.name)
    if live and live.status in sagemaker.BUSY and live.revision != revision.name:
        log = EndpointLog(context.aws, live, live.created)
        live = wait_while_busy(context, revision, live.created, log)
        if live and live.status != "InService":
            raise not_in_service(live, log)
    if live is None or live.revision == revision.name:
        return
    if live.component is None:
        context.say("Creating copies", f"{request['RuntimeConfig']['CopyCount']}")
        own = {"Key": ID_TAG, "Value": context.record.id}
        tags = [*request.get("Tags", ()), own, {"Key": REVISION_TAG, "Value": revision.fingerprint}]
        components.create_component(context.aws, {**request, "Tags": tags})
    else:
        context.say("Updating copies", f"to {revision.name}")
        kept = _with_kept_copies(context, live, revision, request)
        steps = {}
        if rolled_out and live.component.desired_copies:  # none serves after a scale to zero
            count = kept["RuntimeConfig"]["CopyCount"]
            steps = alarms.rollout_parameter(
                context, revision, min(count, live.component.desired_copies)
            )
        components.update_component(context.aws, kept | steps, live.component.desired_copies)


def _with_kept_copies(
    context: DeploymentContext, live: Endpoint, revision: Revision, request: dict[str, Any]
) -> dict[str, Any]:
    """The request with the number of copies that scaling chose, where it scales."""
    planned, plan = request["RuntimeConfig"]["CopyCount"], revision.plan
    scales = plan is not None and plan.scaling is not None
    count = kept_copies(context.aws, live, planned, scales)
    return {**request, "RuntimeConfig": {"CopyCount": count}}


def request_to_return(live: Endpoint, revision: Revision) -> dict[str, Any]:
    """The request that brings the copies back to a kept revision: by its plan, else with what the
    copies reserve now."""
    if revision.plan is not None:
        request = dict(requests(revision.plan)[-1].parameters)
    else:
        assert live.component is not None
        request = {
            "InferenceComponentName": live.name,
            "Specification": dict(live.component.specification),
            "RuntimeConfig": {"CopyCount": revision.served.copies or live.component.desired_copies},
        }
    request["Specification"] = {**request["Specification"], "ModelName": revision.model}
    return request


def remove_copies(context: DeploymentContext, live: Endpoint) -> Endpoint | None:
    """Remove the endpoint's component and wait until it is gone; the endpoint without it. What is
    changing ends first."""
    revision, since = context.record.current, context.clock.now()
    autoscaling.deregister_before_deletion(context.aws, live.name, copies=True)
    while live.component is not None:
        if live.component.status != "Deleting":
            try:
                components.delete_component(context.aws, live.name)
            except Busy:
                purpose = "Waiting for the copies' current change to end"
                wait_while_busy(context, revision, since, purpose=purpose)
        found = wait_while_busy(context, revision, since, purpose="Removing copies")
        if found is None:
            return None
        live = found
    return live
