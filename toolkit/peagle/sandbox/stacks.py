"""CloudFormation in the sandbox: moto's stacks with SageMaker's resources.

A stack is in progress until its endpoints are in service; then it is COMPLETE or FAILED, with its
reason. A changed model or configuration is replaced; an endpoint is updated in place. Nothing is
rolled back but what SageMaker itself returns. Types that moto lacks are named in the reason.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from botocore import xform_name
from moto.cloudformation import models, urls
from moto.cloudformation.exceptions import ValidationError
from moto.cloudformation.models import CloudFormationBackend, Stack, cloudformation_backends
from moto.cloudformation.parsing import ResourceMap, get_model_map, resource_class_from_type
from moto.cloudformation.responses import CloudFormationResponse
from moto.core.exceptions import ServiceException
from moto.sagemaker import exceptions as sagemaker_exceptions
from moto.sagemaker.models import FakeEndpoint, FakeEndpointConfig
from moto.sagemaker.models import Model as MotoModel

from peagle.request_validation import service_model
from peagle.sandbox.endpoints import LOCK, NotFoundError, SandboxEndpoint
from peagle.sandbox.requests import problems_text
from peagle.sandbox.sagemaker import find_backend

_BUSY = "_IN_PROGRESS"
_NUMBERS = {"integer": int, "long": int, "float": float, "double": float}

Document = Mapping[str, Any]


class SandboxStack(Stack):
    """A stack whose status is that of its endpoints."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.status_reason: str | None = None
        self._is_changing = False
        super().__init__(*arguments, **named)

    @property
    def status(self) -> str:
        """Its status; in progress, it ends with the last change of its endpoints."""
        with LOCK:
            endpoints = [item for item in self.stack_resources if isinstance(item, SandboxEndpoint)]
            is_busy = any(endpoint.is_busy for endpoint in endpoints)
            if self._status.endswith(_BUSY) and not (is_busy or self._is_changing):
                failed = [
                    endpoint.failure_reason or f"the endpoint is {endpoint.endpoint_status}"
                    for endpoint in endpoints
                    if endpoint.failure_reason or endpoint.endpoint_status != "InService"
                ]
                self._finish("FAILED" if failed else "COMPLETE", *failed)
            return self._status

    @status.setter
    def status(self, status: str) -> None:
        self._status = status

    @property
    def outputs(self) -> list[dict[str, Any]] | None:
        """The outputs of a complete stack: moto would make what they mention."""
        return super().outputs if self.status.endswith("_COMPLETE") else None

    @property
    def stack_resources(self) -> list[Any]:
        """The resources that were made so far."""
        made = self.resource_map._parsed_resources
        return [made[name] for name in self.resource_map.resources if made.get(name)]

    def has_parameters(self, other_parameters: dict[str, Any]) -> bool:
        """Whether the stack has these values, given or by default."""
        values = self.stack_parameters
        return all(values.get(name) == value for name, value in other_parameters.items())

    def create_resources(self) -> None:
        """CreateStack: begin to make all resources."""
        self.description = self.template_dict.get("Description")
        self._begin("CREATE", lambda: self.resource_map.create(self.template_dict))

    def update(
        self,
        template: str,
        role_arn: str | None = None,
        parameters: dict[str, Any] | None = None,
        tags: dict[str, str] | None = None,
        word: str = "UPDATE",
    ) -> None:
        """UpdateStack: begin to bring the resources to another template or other parameters;
        ``word`` is CREATE for a stack that a change set has announced."""
        if self.status.endswith(_BUSY) and word == "UPDATE":
            message = f"Stack:{self.stack_id} is in {self.status} state and can not be updated."
            raise ValidationError(self.stack_id, message=message)
        self._add_stack_event(f"{word}{_BUSY}", "User Initiated")
        self.template, self.role_arn = template, role_arn
        self._parse_template()
        self.parameters = parameters or self.parameters
        self.tags = self.tags if tags is None else tags
        self._begin(word, lambda: self.resource_map.update(self.template_dict, parameters))
        self.output_map = self._create_output_map()

    def _begin(self, word: str, work: Callable[[], object]) -> None:
        self.status, self._is_changing = f"{word}{_BUSY}", True
        conditions = self.resource_map.lazy_condition_map
        kinds = {
            document["Type"]
            for document in self.template_dict["Resources"].values()
            if conditions.get(document.get("Condition"), True)
        }
        lacking = ", ".join(sorted(kind for kind in kinds if not resource_class_from_type(kind)))
        note = f"The sandbox does not keep resources of these types: {lacking}."
        self.status_reason = note if lacking else None
        try:
            work()
            for resource in self.stack_resources:
                if getattr(resource, "cf_resource_type", "") in RESOURCES:
                    self._add_tags(resource)
        except Exception as error:
            if not isinstance(error, ServiceException):
                traceback.print_exception(error)
            self._finish("FAILED", str(getattr(error, "message", "") or error))
        finally:
            self._is_changing = False

    def _finish(self, status: str, *reasons: str) -> None:
        word = self._status.partition("_")[0]
        self.status_reason = "; ".join(filter(None, (*reasons, self.status_reason))) or None
        self._status = f"{word}_{status}"
        self._add_stack_event(self._status, self.status_reason)

    def _add_tags(self, resource: Any) -> None:
        """Add the tags of the stack, and CloudFormation's own."""
        added = self.tags | {
            "aws:cloudformation:stack-id": self.stack_id,
            "aws:cloudformation:stack-name": self.name,
            "aws:cloudformation:logical-id": resource.logical_resource_id,
        }
        with LOCK:
            keys = {tag["Key"] for tag in resource.tags}
            new = [{"Key": key, "Value": text} for key, text in added.items() if key not in keys]
            resource.tags = [*resource.tags, *new]


class Resources(ResourceMap):
    """The resources of a stack. Those of SageMaker may refer to a changed one, so each is compared
    with what the template makes of it now: a model, then a configuration, then an endpoint."""

    def build_resource_diff(
        self, other_template: dict[str, Any], parameters: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """The names to add, to modify and to remove."""
        difference = super().build_resource_diff(other_template, parameters)
        kinds = {name: document["Type"] for name, document in other_template["Resources"].items()}
        modified = [name for name in difference["Modify"] if kinds[name] not in RESOURCES]
        for kind in RESOURCES:
            modified += [name for name in kinds if kinds[name] == kind]
        made = [name for name in modified if self._parsed_resources.get(name)]
        return {**difference, "Modify": made}


def with_types(shape: Any, value: Any) -> Any:
    """``value`` with numbers, booleans and texts of the types that the service expects, to which
    CloudFormation converts them."""
    if isinstance(value, Mapping) and shape.type_name in ("structure", "map"):
        members = getattr(shape, "members", {})
        of_map = getattr(shape, "value", None)
        return {
            key: with_types(member, item) if (member := members.get(key, of_map)) else item
            for key, item in value.items()
        }
    if isinstance(value, list) and shape.type_name == "list":
        return [with_types(shape.member, item) for item in value]
    if shape.type_name == "string" and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if shape.type_name == "boolean" and value in ("true", "false"):
        return value == "true"
    if shape.type_name in _NUMBERS and isinstance(value, str):
        with suppress(ValueError):  # the service rejects it
            return _NUMBERS[shape.type_name](value)
    return value


class _Resource:
    """A resource of SageMaker, which a change replaces."""

    kind: str

    @classmethod
    def parameters(cls, name: str, document: Document, change: str = "Create") -> Any:
        """The parameters of an operation for the properties of a template. ``name`` is moto's for a
        resource without one. Raises moto's ValidationError for what SageMaker rejects."""
        operation = f"{change}{cls.kind}"
        head, _, suffix = name.rpartition("-")
        short = f"{head[:50].rstrip('-')}-{suffix}" if len(name) > 63 else name
        shape = service_model("sagemaker").operation_model(operation).input_shape
        properties = with_types(shape, document.get("Properties") or {})
        parameters = {f"{cls.kind}Name": short, **properties}
        if problems := problems_text("sagemaker", xform_name(operation), parameters):
            raise sagemaker_exceptions.ValidationError(problems)
        return parameters

    @classmethod
    def create_from_cloudformation_json(
        cls, name: str, document: Document, _: str, region: str, **of: Any
    ) -> Any:
        register = getattr(find_backend(region), f"register_{xform_name(cls.kind)}")
        return register(cls.parameters(name, document))

    @classmethod
    def update_from_cloudformation_json(
        cls, original_resource: Any, new_resource_name: str, cloudformation_json: Document,
        account_id: str, region_name: str,
    ) -> Any:  # fmt: skip
        """Replace it by another one, if it changes. Raises ValidationError."""
        name, old = f"{cls.kind}Name", original_resource.parameters
        new = cls.parameters(new_resource_name, cloudformation_json)
        is_named = name in cloudformation_json["Properties"]
        if old == (new if is_named else {**new, name: old[name]}):
            return original_resource
        with suppress(NotFoundError):
            getattr(find_backend(region_name), f"delete_{xform_name(cls.kind)}")(old[name])
        return cls.create_from_cloudformation_json(
            new_resource_name, cloudformation_json, account_id, region_name
        )


class ModelResource(_Resource, MotoModel):  # type: ignore[misc]
    kind = "Model"


class EndpointConfigResource(_Resource, FakeEndpointConfig):  # type: ignore[misc]
    kind = "EndpointConfig"


class EndpointResource(_Resource, FakeEndpoint):  # type: ignore[misc]
    kind = "Endpoint"

    @classmethod
    def update_from_cloudformation_json(
        cls, original_resource: SandboxEndpoint, new_resource_name: str,
        cloudformation_json: Document, account_id: str, region_name: str,
    ) -> SandboxEndpoint:  # fmt: skip
        """Begin to give it another configuration."""
        name, backend = original_resource.endpoint_name, find_backend(region_name)
        parameters = cls.parameters(name, cloudformation_json, "Update")
        parameters["EndpointName"], tags = name, parameters.pop("Tags", [])
        if parameters["EndpointConfigName"] != original_resource.endpoint_config_name:
            backend.update_endpoint(parameters)
        backend.add_tags(original_resource.arn, tags)
        return original_resource

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, document: Document, _: str, region: str
    ) -> None:
        """Delete it and wait, also while it is still being created."""
        name, backend = resource_name.rpartition("/")[2], find_backend(region)
        if endpoint := backend.endpoints.get(name):
            endpoint.end()
            endpoint.join()
            backend.begin_deleting(name).join()


RESOURCES: dict[str, Any] = {
    "AWS::SageMaker::Model": ModelResource,
    "AWS::SageMaker::EndpointConfig": EndpointConfigResource,
    "AWS::SageMaker::Endpoint": EndpointResource,
}
"""Type in a template -> its class, in the place of moto's."""


class StackOperations(CloudFormationResponse):
    """The operation that differs from moto's."""

    def _validate_different_update(self, *arguments: Any) -> None:
        """A change set without a change is created, as FAILED; only UpdateStack rejects it."""
        if self._get_action() != "CreateChangeSet":
            super()._validate_different_update(*arguments)


class Stacks(CloudFormationBackend):
    """The stacks of one region."""

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def execute_change_set(self, change_set_name: str, stack_name: str | None = None) -> None:
        """Begin to create or update the stack, as ``aws cloudformation deploy`` does."""
        change_set = self.describe_change_set(change_set_name)
        assert change_set is not None, "moto raises for an unknown one"
        stack = self.stacks[change_set.stack_id]
        assert isinstance(stack, SandboxStack)
        word, tags = change_set.change_set_type, change_set.tags
        stack.update(change_set.template, None, change_set.parameters, tags, word)
        change_set.execution_status = "EXECUTE_COMPLETE"


def install() -> None:
    """Let this process's moto use these stacks. Call it before the first such request."""
    cloudformation_backends.backend = Stacks
    vars(models)["Stack"] = SandboxStack
    vars(models)["ResourceMap"] = Resources
    get_model_map().update(RESOURCES)
    urls.url_paths["{0}/$"] = StackOperations.dispatch
