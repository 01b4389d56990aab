"""Who may change a deployment: this toolkit, or the template or script that made it."""

from __future__ import annotations

from collections.abc import Mapping

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.sagemaker import ID_TAG, KINDS
from peagle.deploy import records
from peagle.deploy.context import Observer, Progress, unobserved
from peagle.deploy.state import Deployment
from peagle.errors import Fix, Refused
from peagle.render.requests import OWNER_TAG, STACK_TAG

_STACK_TAG_OF_AWS = "aws:cloudformation:stack-name"
"""Set by CloudFormation on the resources of a stack."""


def require_own(deployment: Deployment) -> None:
    """Raise Refused for a deployment that a template or another program owns."""
    if deployment.owner:
        raise Refused(
            f"{deployment.name} belongs to {deployment.owner}: changes made here would be undone "
            "or orphaned there",
            Fix(
                "change it there, or record the change of owner",
                ("peagle", "adopt", deployment.name),
            ),
            code="other-owner",
        )


def owner_of(tags: Mapping[str, str]) -> str:
    """Who changes the resource: empty for this toolkit, else such as ``CloudFormation stack
    NAME``."""
    stack = tags.get(STACK_TAG) or tags.get(_STACK_TAG_OF_AWS)
    owner = tags.get(OWNER_TAG, "cloudformation" if stack else "")
    if owner == "peagle" or (not owner and ID_TAG in tags):
        return ""
    if owner == "cloudformation":
        return f"CloudFormation stack {stack}" if stack else "a CloudFormation stack"
    programs = {"terraform": "a Terraform module", "cdk": "a CDK app"}
    if owner in programs:
        return programs[owner]
    return f"a rendered {owner} script" if owner else "an unknown owner"


def adopt(aws: Aws, found: Deployment, observe: Observer = unobserved) -> Deployment:
    """Take over a deployment: tag every resource as this toolkit's, and write its record.

    Raises CloudError when a tag may not be written; the call may be repeated.
    """
    tags = [
        {"Key": ID_TAG, "Value": found.id},
        {"Key": OWNER_TAG, "Value": "peagle"},
    ]
    # The endpoint's tags decide who owns a deployment, so they come last: an interrupted adoption
    # has changed nothing and may be repeated.
    for kind in KINDS:
        for resource in found.of_type(kind):
            observe(Progress("Adopting", line=resource.text, lasting=False))
            arn = sagemaker.description(aws, kind, resource.name)[f"{kind}Arn"]
            sagemaker.retag(aws, arn, tags)
    adopted = found.model_copy(update={"owner": ""})
    records.save(adopted)
    return adopted
