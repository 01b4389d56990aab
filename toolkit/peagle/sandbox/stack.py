"""A CloudFormation stack that is created, updated, rolled back and deleted as on AWS.

    CreateStack  CREATE_IN_PROGRESS -> CREATE_COMPLETE; when a resource fails, all are deleted:
                 ROLLBACK_IN_PROGRESS -> ROLLBACK_COMPLETE
    UpdateStack  UPDATE_IN_PROGRESS -> UPDATE_COMPLETE_CLEANUP_IN_PROGRESS -> UPDATE_COMPLETE; when
                 a resource fails: UPDATE_ROLLBACK_IN_PROGRESS -> UPDATE_ROLLBACK_COMPLETE
    DeleteStack  DELETE_IN_PROGRESS -> removed

moto resolves templates; it creates what an output or another resource mentions at the moment of the
question, reports a stack as complete at once, and rolls nothing back. Here one thread per stack
makes its resources in the order of their dependencies and waits for endpoints.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import Event, Stack, cloudformation_backends
from moto.cloudformation.parsing import (
    clean_json,
    parse_and_create_resource,
    resource_class_from_type,
)
from moto.core.exceptions import ServiceException

from peagle.sandbox.endpoint import SandboxEndpoint
from peagle.sandbox.resources import NotFoundError
from peagle.sandbox.stack_resources import (
    NAME_PROPERTIES,
    RESOURCES,
    ResourceFailed,
    add_stack_tags,
    in_order,
    require_service,
    update_endpoint,
)

_BUSY = "_IN_PROGRESS"


@dataclass(frozen=True)
class _Made:
    """A resource of a stack, and its part of the template with all references resolved."""

    resource: Any
    document: Mapping[str, Any]


class SandboxStack(Stack):
    """A stack; its resources are made by a thread of its own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._made: dict[str, _Made] = {}
        self._outputs: list[dict[str, Any]] = []
        self._thread: threading.Thread | None = None
        super().__init__(*arguments, **named)

    @property
    def outputs(self) -> list[dict[str, Any]] | None:
        """The outputs since the stack was last complete."""
        return self._outputs or None

    @property
    def exports(self) -> list[Any]:
        """What other stacks may import, since the stack was last complete."""
        return self.output_map.exports if self._outputs else []

    @property
    def stack_resources(self) -> list[Any]:
        """The resources that were made so far."""
        return [made.resource for made in self._made.values()]

    def has_parameters(self, other_parameters: dict[str, Any]) -> bool:
        """Whether the stack has these values, given or by default."""
        values = self.stack_parameters
        return all(values.get(name) == value for name, value in other_parameters.items())

    def create_resources(self) -> None:
        """Begin to make all resources."""
        self.description = self.template_dict.get("Description")
        self._begin("CREATE_IN_PROGRESS", self._create)

    def begin_creating(self, template: str, parameters: dict[str, Any]) -> None:
        """Begin to make the resources of a stack that a change set has announced."""
        self.template, self.parameters = template, parameters
        self._parse_template()
        self.resource_map = self._create_resource_map()
        self.output_map = self._create_output_map()
        self._add_stack_event("CREATE_IN_PROGRESS", "User Initiated")
        self.create_resources()

    def update(
        self,
        template: str,
        role_arn: str | None = None,
        parameters: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
    ) -> None:
        """Begin to bring the resources to another template or other parameters."""
        if self.status.endswith(_BUSY):
            message = f"Stack:{self.stack_id} is in {self.status} state and can not be updated."
            raise ValidationError(self.stack_id, message=message)
        names = ("template", "template_dict", "parameters", "tags", "resource_map", "output_map")
        before = {name: getattr(self, name) for name in names}
        try:
            self.template = template
            self._parse_template()
            self.parameters = parameters or {}
            self.tags = self.tags if tags is None else tags
            self.resource_map = self._create_resource_map()
            self.output_map = self._create_output_map()
        except Exception:
            self.__dict__.update(before)
            raise
        self.role_arn = role_arn
        self._begin("UPDATE_IN_PROGRESS", partial(self._update, before))

    def begin_deleting(self, on_deleted: Callable[[], object]) -> None:
        """Delete all resources, after the change that is in progress, then call ``on_deleted``."""
        running = self._thread

        def delete() -> None:
            if running:
                running.join()
            self._report("DELETE_IN_PROGRESS", "User Initiated")
            try:
                self._delete(self._made)
            except Exception as error:
                self._report("DELETE_FAILED", _reason(error))
                return
            self._report("DELETE_COMPLETE")
            on_deleted()

        self._begin("DELETE_IN_PROGRESS", delete)

    def _begin(self, status: str, work: Callable[[], None]) -> None:
        self.status = status
        self._thread = threading.Thread(target=work, name=f"{status} {self.name}", daemon=True)
        self._thread.start()

    def _report(self, status: str, reason: str | None = None) -> None:
        self._add_stack_event(status, reason)
        self.status = status

    def _create(self) -> None:
        undo: list[Callable[[], object]] = []
        try:
            self._make({}, undo)
            self._complete("CREATE_COMPLETE")
        except Exception as error:
            self._roll_back("ROLLBACK", undo, error)
            self._made = {}

    def _update(self, before: dict[str, Any]) -> None:
        self._report("UPDATE_IN_PROGRESS", "User Initiated")
        old, undo = self._made, list[Callable[[], object]]()
        self._made = dict(old)
        try:
            self._make(old, undo)
        except Exception as error:
            self._roll_back("UPDATE_ROLLBACK", undo, error)
            self.__dict__.update(before)
            self._made = old
            return
        self._report("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS")
        kept = [made.resource for made in self._made.values()]
        self._delete({name: one for name, one in old.items() if one.resource not in kept})
        self._complete("UPDATE_COMPLETE")

    def _complete(self, status: str) -> None:
        self._outputs = [
            {"OutputKey": one.key, "OutputValue": one.value, "Description": one.description}
            for one in self.output_map.values()
            if one
        ]
        backend = cloudformation_backends[self.account_id][self.region_name]
        for export in self.exports:
            backend.exports[export.name] = export
        self._report(status)

    def _roll_back(self, word: str, undo: list[Callable[[], object]], error: Exception) -> None:
        """Undo what was done, the last step first."""
        self._report(f"{word}_IN_PROGRESS", _reason(error))
        try:
            for step in reversed(undo):
                step()
        except Exception as failure:
            self._report(f"{word}_FAILED", _reason(failure))
        else:
            self._report(f"{word}_COMPLETE")

    def _make(self, old: Mapping[str, _Made], undo: list[Callable[[], object]]) -> None:
        """Make every resource of the template, or keep or update the ``old`` one of its name."""
        resources = self.template_dict["Resources"]
        for name in [one for one in self._made if one not in resources]:
            del self._made[name]
        for name in in_order(resources):
            document, previous = resources[name], old.get(name)
            if not self._is_made(document):
                self._made.pop(name, None)
                continue
            resolved = clean_json(document, self.resource_map)
            if previous is None or previous.document != resolved:
                try:
                    made = self._changed(name, resolved, previous, undo)
                except Exception as error:
                    status = "CREATE_FAILED" if previous is None else "UPDATE_FAILED"
                    self._report_resource(name, document["Type"], status, None, _reason(error))
                    raise
            else:
                made = previous.resource
            self._made[name] = _Made(made, resolved)
            self.resource_map._parsed_resources[name] = made

    def _changed(
        self,
        name: str,
        document: dict[str, Any],
        previous: _Made | None,
        undo: list[Callable[[], object]],
    ) -> Any:
        """The resource, created or updated."""
        kind, resource = document["Type"], previous.resource if previous else None
        key = NAME_PROPERTIES.get(kind, "")
        given = (document.get("Properties") or {}).get(key)
        same_name = previous is not None and given == previous.document["Properties"].get(key)
        if isinstance(resource, SandboxEndpoint) and previous and same_name:
            self._report_resource(name, kind, "UPDATE_IN_PROGRESS", resource)
            undo.append(partial(self._restore, resource, resource.endpoint_config_name, previous))
            update_endpoint(resource, document, self.region_name)
            self._report_resource(name, kind, "UPDATE_COMPLETE", resource)
            return resource
        if given and same_name:
            raise ResourceFailed(
                "CloudFormation cannot update a stack when a custom-named resource requires "
                f"replacing. Rename {given} and update the stack again."
            )
        if previous and kind not in RESOURCES:
            return resource_class_from_type(kind).update_from_cloudformation_json(
                resource, name, document, self.account_id, self.region_name
            )
        self._report_resource(name, kind, "CREATE_IN_PROGRESS")
        resource = self._parsed(name, document)
        undo.append(partial(self._delete, {name: _Made(resource, document)}))
        if kind in RESOURCES:
            add_stack_tags(resource, self.stack_id, name, self.tags)
        if isinstance(resource, SandboxEndpoint):
            resource.join()
            require_service(resource)
        self._report_resource(name, kind, "CREATE_COMPLETE", resource)
        return resource

    def _parsed(self, name: str, document: dict[str, Any]) -> Any:
        return parse_and_create_resource(
            name, document, self.resource_map, self.account_id, self.region_name
        )

    def _restore(self, endpoint: SandboxEndpoint, config: str, previous: _Made) -> None:
        """Bring an endpoint back, unless SageMaker itself has rolled its update back."""
        if endpoint.endpoint_config_name != config:
            update_endpoint(endpoint, previous.document, self.region_name)

    def _is_made(self, document: Mapping[str, Any]) -> bool:
        """Whether the condition of a resource holds and moto has its type."""
        condition = document.get("Condition")
        if condition and not self.resource_map.lazy_condition_map[condition]:
            return False
        return resource_class_from_type(document["Type"]) is not None

    def _delete(self, resources: Mapping[str, _Made]) -> None:
        """Delete the resources, the last one first."""
        for name, made in reversed(list(resources.items())):
            if made.document.get("DeletionPolicy") == "Retain":
                continue
            kind = made.document["Type"]
            self._report_resource(name, kind, "DELETE_IN_PROGRESS", made.resource)
            with suppress(NotFoundError):  # deleted by someone else
                self.resource_map._delete_resource(made.resource, dict(made.document))
            self._report_resource(name, kind, "DELETE_COMPLETE", made.resource)

    def _report_resource(
        self, name: str, kind: str, status: str, resource: Any = None, reason: str | None = None
    ) -> None:
        physical = getattr(resource, "physical_resource_id", "") or ""
        self.events.append(
            Event(self.stack_id, self.name, name, physical, kind, status, reason, None)
        )


def _reason(error: Exception) -> str:
    """Why a resource failed, as an event of the stack shows it."""
    if not isinstance(error, ResourceFailed | ServiceException):
        traceback.print_exception(error)
    return str(getattr(error, "message", "") or error)
