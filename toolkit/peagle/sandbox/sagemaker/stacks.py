"""CloudFormation stacks that wait for their endpoints.

moto calls a stack complete as soon as every resource of its template exists. Loading this module
takes a second, as moto's CloudFormation knows every service, so ``front`` does it on first use.
"""

from __future__ import annotations

from typing import Any

from moto.cloudformation import urls
from moto.cloudformation.models import CloudFormationBackend, Stack, cloudformation_backends

from peagle.sandbox.sagemaker.endpoint import Endpoint


def install() -> None:
    """Let this process's moto use our stacks. Before its first request for one."""
    cloudformation_backends.backend = Stacks


class Stacks(CloudFormationBackend):
    """The stacks of one region."""

    @property
    def _url_module(self) -> Any:
        """moto guesses it from the class's module; ours is elsewhere."""
        return urls

    def describe_stacks(self, name_or_stack_id: str) -> list[Stack]:
        """The stacks, each as far as its endpoints are."""
        for stack in list(self.stacks.values()):
            if stack.status == "CREATE_IN_PROGRESS":
                _follow(stack)
        return super().describe_stacks(name_or_stack_id)


def _follow(stack: Stack) -> None:
    """AWS would roll back a stack whose endpoint fails; here it stays, as failed."""
    resources: Any = stack.stack_resources  # moto's type says classes; they are objects
    for resource in resources:
        if isinstance(resource, Endpoint) and resource.failure_reason:
            stack.status = "CREATE_FAILED"
            stack._add_stack_event("CREATE_FAILED", resource.failure_reason)
            return
    stack.verify_readiness()
