"""Prove a revision on a temporary endpoint of one instance, before the endpoint is changed.

The temporary endpoint serves the revision's own model. It is a resource of the same deployment, so
that an interruption leaves it on record: the next deploy, rollback or destroy removes it.
"""

from __future__ import annotations

from typing import Any

from peagle import proof
from peagle.deploy import steps
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.proving.prove import prove_revision
from peagle.deploy.revisions import of_one_instance, temporary_name, temporary_resources
from peagle.deploy.watch import WillNotServe
from peagle.errors import EngineError, NotProved


class NotProvedFirst(NotProved, code="not-proved-first"):
    """The new revision is not proved, and the endpoint was not changed."""


def prove_first(context: DeploymentContext, desired: DesiredState) -> None:
    """Prove ``desired``, whose model exists, on the temporary endpoint, and remove that, however
    this ends. Raises NotProvedFirst when it is not proved, and what a step raises."""
    name = temporary_name(context.record.name)
    revision = of_one_instance(desired.revision)
    variants = [{**one, "InitialInstanceCount": 1} for one in desired.config["ProductionVariants"]]
    for variant in variants:
        variant.pop("RoutingConfig", None)
    config = desired.config | {
        "EndpointConfigName": revision.config,
        "ProductionVariants": variants,
    }
    request: dict[str, Any] = desired.endpoint | {
        "EndpointName": name,
        "EndpointConfigName": revision.config,
    }
    try:
        steps.create_config(context, revision, config)
        with context.at(name):
            steps.put_endpoint(context, revision, request)
            steps.wait_in_service(context, revision, request)
            proved = prove_revision(context, revision)
        proof.require_passed(proved, revision.served.pair or "PAIR", name)
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


def remove(context: DeploymentContext) -> None:
    """Remove the temporary endpoint of this or an interrupted command, if there is one."""
    for resource in temporary_resources(context.record):
        steps.remove_resource(context, resource)
