"""Prove a revision on a temporary endpoint before the endpoint is changed.

The temporary endpoint has one instance, or one copy on it, and serves the revision's own model. It
is a resource of the same deployment, so that an interruption leaves it on record: the next deploy,
rollback or destroy removes it.
"""

from __future__ import annotations

from typing import Any

from peagle import proof
from peagle.deploy import removal, steps
from peagle.deploy.context import DeploymentContext
from peagle.deploy.copies import of_one_copy, put_copies
from peagle.deploy.desired import DesiredState
from peagle.deploy.extra_instances import record_end_of_proof
from peagle.deploy.limits import keep_budget
from peagle.deploy.proving.prove import prove_request
from peagle.deploy.proving.request import request_of_plan
from peagle.deploy.revisions import of_one_instance, temporary_name, temporary_resources
from peagle.deploy.wait import WillNotServe
from peagle.errors import EngineError, NotProved


class NotProvedFirst(NotProved, code="not-proved-first"):
    """The new revision is not proved, and the endpoint was not changed.

    Fix: choose another head, K or version; the message has what was measured
    """


def prove_first(context: DeploymentContext, desired: DesiredState) -> None:
    """Prove ``desired``, whose model exists, on the temporary endpoint, and remove that, however
    this ends. Raises NotProvedFirst when it is not proved, and what a step raises."""
    name = temporary_name(context.record.name)
    revision = of_one_instance(desired.revision)
    config = desired.config | {
        "EndpointConfigName": revision.endpoint_config,
        "ProductionVariants": [_of_one_instance(v) for v in desired.config["ProductionVariants"]],
    }
    request: dict[str, Any] = desired.endpoint | {
        "EndpointName": name,
        "EndpointConfigName": revision.endpoint_config,
    }
    try:
        steps.create_config(context, revision, config)
        with context.at(name):
            steps.put_endpoint(context, revision, request)
            if desired.component:
                put_copies(context, revision, of_one_copy(desired.component, name))
            steps.wait_in_service(context, revision, request)
            asked = request_of_plan(desired.plan, name)
            proved = prove_request(context, asked)
        proof.require_passed(proved, asked.pair, name)
    except (NotProved, EngineError, WillNotServe) as error:
        remove(context)
        raise NotProvedFirst(
            f"{error.message} on the temporary endpoint {name}; {context.record.name} was not "
            "changed",
            error.fix,
        ) from error
    except BaseException:
        remove(context)
        raise
    remove(context)


def _of_one_instance(variant: dict[str, Any]) -> dict[str, Any]:
    one = {**variant, "InitialInstanceCount": 1}
    one.pop("RoutingConfig", None)
    if scaling := variant.get("ManagedInstanceScaling"):
        one["ManagedInstanceScaling"] = {**scaling, "MinInstanceCount": 1, "MaxInstanceCount": 1}
    return one


def remove(context: DeploymentContext) -> None:
    """Remove the temporary endpoint of this or an interrupted command, if there is one."""
    left = temporary_resources(context.record)
    for resource in left:
        removal.remove_resource(context, resource)
    if left:
        record_end_of_proof(context)
        keep_budget(context)
