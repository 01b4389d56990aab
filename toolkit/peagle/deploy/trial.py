"""Prove a revision on a temporary endpoint of one instance, before the endpoint is changed.

The temporary endpoint serves the revision's own model. It is a resource of the same deployment, so
that an interruption leaves it on record: the next deploy, rollback or destroy removes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from peagle import proof
from peagle.catalog import load_catalog
from peagle.deploy import steps
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState
from peagle.deploy.prover import Prover
from peagle.deploy.proving import request_of_plan, request_of_served
from peagle.deploy.revisions import of_one_instance, trial_name, trial_resources
from peagle.deploy.state import Revision
from peagle.deploy.watch import WillNotServe
from peagle.errors import EngineError, NotProved
from peagle.proof import Proof


class Failed(NotProved, code="not-proved-first"):
    """The new revision is not proved, and the endpoint was not changed."""


def prove(context: DeploymentContext, desired: DesiredState) -> None:
    """Prove ``desired``, whose model exists, on the temporary endpoint, and remove that, however
    this ends. Raises Failed when it is not proved, and what a step raises."""
    name = trial_name(context.record.name)
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
        raise Failed(
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
    for resource in trial_resources(context.record):
        steps.remove_resource(context, resource)


def prove_revision(context: DeploymentContext, revision: Revision, started: float = 0.0) -> Proof:
    """Prove the endpoint that the context works on, which serves ``revision``; a proof that fails
    is returned too. ``started`` is when the update to it began, in epoch seconds.

    Raises what ``Prover.prove`` raises.
    """
    name, plan = context.endpoint, revision.plan
    if plan:
        request = request_of_plan(plan, name, started)
    else:
        of_pair = request_of_served(revision.served, context.catalog or load_catalog())
        request = replace(of_pair, name=name, revision_started=started)
    context.say("Proving", f"{len(request.prompts)} prompts")
    prover = Prover(
        context.aws, context.clock, lambda line: context.say("Proving", line, lasting=True)
    )
    return prover.prove(request)
