"""Takes over a deployment that a template or a rendered script made, or records one of another
machine."""

from __future__ import annotations

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.sagemaker import ID_TAG, ResourceKind
from peagle.deploy import state
from peagle.deploy.context import Observer, Progress, unobserved
from peagle.deploy.state import Deployment
from peagle.render.requests import OWNER_TAG

_ORDER: tuple[ResourceKind, ...] = ("Model", "EndpointConfig", "Endpoint")
"""The endpoint's tags decide who owns a deployment, so they come last: an interrupted adoption has
changed nothing and may be repeated."""


def adopt(aws: Aws, found: Deployment, observe: Observer = unobserved) -> Deployment:
    """Tag every resource of a deployment as this toolkit's, and write its record.

    Raises CloudError when a tag may not be written; the call may be repeated.
    """
    tags = [
        {"Key": ID_TAG, "Value": found.id},
        {"Key": OWNER_TAG, "Value": "peagle"},
    ]
    for kind in _ORDER:
        for resource in found.of_type(kind):
            observe(Progress("Adopting", line=f"{kind} {resource.name}", lasting=False))
            arn = sagemaker.description(aws, kind, resource.name)[f"{kind}Arn"]
            sagemaker.retag(aws, arn, tags)
    adopted = found.model_copy(update={"owner": ""})
    state.save(adopted)
    return adopted
