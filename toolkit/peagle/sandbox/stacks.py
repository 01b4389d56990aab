"""CloudFormation in the sandbox: the stacks of a region (``stack``) and their change sets.

Importing moto's CloudFormation takes a second, so ``router`` imports this module at the first use.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from moto.cloudformation import models, urls
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend, cloudformation_backends
from moto.cloudformation.parsing import get_model_map
from moto.cloudformation.responses import CloudFormationResponse

from peagle.sandbox.stack import SandboxStack
from peagle.sandbox.stack_resources import RESOURCES, ScheduleResource


def install() -> None:
    """Let this process's moto use these stacks. Call it before the first such request."""
    cloudformation_backends.backend = Stacks
    models.Stack = SandboxStack  # type: ignore[misc]
    get_model_map().update(RESOURCES)  # type: ignore[arg-type]
    get_model_map()["AWS::Scheduler::Schedule"] = ScheduleResource  # type: ignore[type-abstract]
    urls.url_paths["{0}/$"] = StackOperations.dispatch


class StackOperations(CloudFormationResponse):
    """The operation that differs from moto's."""

    def _validate_different_update(self, *given: Any) -> None:
        """A change set without a change is created, as FAILED; only UpdateStack rejects it."""
        if self._get_action() != "CreateChangeSet":
            super()._validate_different_update(*given)


class Stacks(CloudFormationBackend):
    """The stacks of one region."""

    stacks: dict[str, SandboxStack]  # type: ignore[assignment]

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def delete_stack(self, name_or_stack_id: str) -> None:
        """Begin to delete a stack, if there is one."""
        for stack_id, stack in list(self.stacks.items()):
            if name_or_stack_id in (stack_id, stack.name) and stack.status != "DELETE_IN_PROGRESS":
                stack.begin_deleting(partial(self._forget, stack))

    def _forget(self, stack: SandboxStack) -> None:
        for name in [one.name for one in stack.exports]:
            self.exports.pop(name, None)
        self.deleted_stacks[stack.stack_id] = stack
        self.stacks.pop(stack.stack_id, None)

    def execute_change_set(self, change_set_name: str, stack_name: str | None = None) -> None:
        """Begin to create or update the stack, as ``aws cloudformation deploy`` does."""
        found = [
            one
            for key, one in self.change_sets.items()
            if change_set_name in (key, one.change_set_name)
            and stack_name in (None, one.stack_id, one.stack_name)
        ]
        if not found:
            raise ValidationError(stack_name)
        change_set = found[-1]
        stack = self.stacks[change_set.stack_id]
        if change_set.change_set_type == "CREATE":
            stack.begin_creating(change_set.template, change_set.parameters)
        else:
            stack.update(change_set.template, None, change_set.parameters, change_set.tags)
        change_set.execution_status = "EXECUTE_COMPLETE"
