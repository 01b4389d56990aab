"""CloudFormation stacks that wait for their endpoints.

moto reports a stack as complete as soon as every resource of its template exists. Importing moto's
CloudFormation takes a second, so ``router`` imports this module at the first use.
"""

from __future__ import annotations

from typing import Any

from moto.cloudformation import urls
from moto.cloudformation.models import CloudFormationBackend, Stack, cloudformation_backends

from peagle.sandbox.endpoint import SandboxEndpoint


def install() -> None:
    """Let this process's moto use these stacks. Call it before the first such request."""
    cloudformation_backends.backend = Stacks


class Stacks(CloudFormationBackend):
    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def describe_stacks(self, name_or_stack_id: str) -> list[Stack]:
        for stack in list(self.stacks.values()):
            if stack.status == "CREATE_IN_PROGRESS":
                _update_status(stack)
        return super().describe_stacks(name_or_stack_id)


def _update_status(stack: Stack) -> None:
    """AWS rolls back a stack whose endpoint fails; here it stays in CREATE_FAILED."""
    resources: Any = stack.stack_resources  # moto's type says classes; they are objects
    for resource in resources:
        if isinstance(resource, SandboxEndpoint) and resource.failure_reason:
            stack.status = "CREATE_FAILED"
            stack._add_stack_event("CREATE_FAILED", resource.failure_reason)
            return
    stack.verify_readiness()
