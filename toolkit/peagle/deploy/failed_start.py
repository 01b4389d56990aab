"""Remove a new endpoint whose engine cannot start, and say what that saves."""

from __future__ import annotations

from dataclasses import dataclass

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.deploy import removal
from peagle.deploy.context import DeploymentContext, Observer, unobserved
from peagle.deploy.revisions import stale_resources
from peagle.deploy.state import Deployment
from peagle.deploy.wait import WillNotServe
from peagle.errors import Refused


@dataclass(frozen=True)
class Saving:
    """The time for which SageMaker would have gone on starting the engine, in seconds, and its
    price; ``usd`` is ``None`` when the price is unknown."""

    seconds: float
    usd: float | None


def possible_saving(record: Deployment, error: WillNotServe, clock: Clock | None = None) -> Saving:
    """What deleting the endpoint now saves at most; nothing once SageMaker has given up, because
    a Failed endpoint costs nothing."""
    now = (clock or Clock()).now()
    seconds = max(0.0, error.gives_up - now) if error.gives_up else 0.0
    price = record.current.served.usd_per_hour
    return Saving(seconds, None if price is None else price * seconds / 3600)


def remove_failed_start(
    aws: Aws,
    record: Deployment,
    error: WillNotServe,
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Saving:
    """Remove what the deploy that ended with ``error`` created; returns what that saves.

    Earlier revisions stay. Nothing is saved if SageMaker accepts no deletion while it creates the
    endpoint: the removal then waits until SageMaker gives up. Raises what ``destroy`` raises, and
    Refused for an endpoint that has come into service after all.
    """
    context = DeploymentContext(aws, record, observe, clock or Clock())
    live = sagemaker.describe(aws, record.name)
    if live and live.status not in ("Creating", "Failed", "Deleting"):
        raise Refused(
            f"endpoint {live.name} is {live.status} after all, so nothing was removed",
            "deploy again to prove it",
            code="serves-after-all",
        )
    saving = Saving(0.0, None)
    if live and live.status == "Creating" and removal.begin_deletion(context, live):
        saving = possible_saving(record, error, context.clock)
    if record.serving is None:
        removal.destroy(aws, record, observe, context.clock)
    else:
        context.change(pending=None)
        endpoints = [one for one in record.of_type("Endpoint") if one.name == record.name]
        for resource in (*endpoints, *stale_resources(context.record)):
            removal.remove_resource(context, resource)
    return saving
