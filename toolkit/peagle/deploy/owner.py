"""Who may change a deployment: this toolkit, or the template that made it."""

from __future__ import annotations

from collections.abc import Mapping

from peagle.aws.sagemaker import ID_TAG
from peagle.deploy.state import Deployment
from peagle.errors import Refused
from peagle.render.requests import OWNER_TAG, STACK_TAG

_STACK_TAG_OF_AWS = "aws:cloudformation:stack-name"
"""Set by CloudFormation on the resources of a stack."""


def require_own(deployment: Deployment) -> None:
    """Raise Refused for a deployment that a template owns."""
    if deployment.owner:
        raise Refused(
            f"{deployment.name} belongs to {deployment.owner}: changes made here would be undone "
            "or orphaned there",
            "change it there",
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
    return programs.get(owner) or owner or "an unknown owner"
