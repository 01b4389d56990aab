"""The user's tags on existing resources: new tags need no new instances."""

from __future__ import annotations

from peagle.aws import sagemaker
from peagle.aws.sagemaker import ResourceKind
from peagle.deploy.context import DeploymentContext
from peagle.deploy.desired import DesiredState


def tag_again(context: DeploymentContext, desired: DesiredState) -> None:
    """Give what exists the user's tags, where a plan differs in nothing else."""
    tags = desired.plan.company.tags
    live = sagemaker.describe(context.aws, context.endpoint) if tags else None
    if live is None:
        return
    known = sagemaker.tags_of(context.aws, live.arn)
    if tags.items() <= known.items():
        return
    context.say("Tagging", ", ".join(f"{key}={value}" for key, value in sorted(tags.items())))
    others: dict[ResourceKind, str] = {
        "Model": desired.model_name,
        "EndpointConfig": desired.revision.endpoint_config,
    }
    for kind, name in others.items():
        found = sagemaker.description(context.aws, kind, name)
        sagemaker.retag(context.aws, found[f"{kind}Arn"], desired.plan.company.tag_list)
    if live.component is not None:
        sagemaker.retag(context.aws, live.component.arn, desired.plan.company.tag_list)
    sagemaker.retag(context.aws, live.arn, desired.plan.company.tag_list)
