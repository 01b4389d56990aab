"""The resources of CloudFormation stacks that moto lacks: SageMaker's, as on AWS, and schedules.

A resource of SageMaker keeps the name that the template gives it; else it is
``<stack>-<logical id>-<random>``. A changed model or configuration is replaced; an endpoint is
updated in place. All others are moto's own.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from graphlib import TopologicalSorter
from typing import Any

from botocore import xform_name
from moto.core.common_models import CloudFormationModel
from moto.sagemaker.models import FakeEndpoint, FakeEndpointConfig
from moto.sagemaker.models import Model as MotoModel
from moto.scheduler.exceptions import ScheduleNotFound
from moto.scheduler.models import Schedule, scheduler_backends

from peagle.request_validation.model import service_model
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoint import SandboxEndpoint
from peagle.sandbox.resources import LOCK, EndpointConfig, SandboxModel
from peagle.sandbox.sagemaker import backend_of
from peagle.sandbox.validation import check_request

_LONGEST_NAME = 63
_SUB = re.compile(r"\$\{([^!}.]+)")

_OF_SCHEDULE = {
    "description": "Description",
    "end_date": "EndDate",
    "flexible_time_window": "FlexibleTimeWindow",
    "group_name": "GroupName",
    "kms_key_arn": "KmsKeyArn",
    "schedule_expression": "ScheduleExpression",
    "schedule_expression_timezone": "ScheduleExpressionTimezone",
    "start_date": "StartDate",
    "state": "State",
    "target": "Target",
}
"""moto's parameter of a schedule -> the property."""


class ResourceFailed(Exception):
    """A resource of a stack was not created or updated; the message is AWS's reason."""


def generated_name(stack: str, logical_id: str) -> str:
    """A name for a resource without one."""
    letters = string.ascii_letters + string.digits
    suffix = "".join(secrets.choice(letters) for _ in range(12))
    return f"{f'{stack}-{logical_id}'[: _LONGEST_NAME - 13].rstrip('-')}-{suffix}"


def _parameters(
    kind: str, document: Mapping[str, Any], region: str, of: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of Create``kind`` for the properties of a template. Raises ValidationError
    for those that SageMaker rejects."""
    operation, key = f"Create{kind}", f"{kind}Name"
    shape = service_model("sagemaker").operation_model(operation).input_shape
    given = _typed(shape, document.get("Properties") or {})
    stack = of["StackId"].split("/")[1]
    parameters = {**given, key: given.get(key) or generated_name(stack, of["LogicalId"])}
    check_request(xform_name(operation), parameters, region)
    return parameters


def _typed(shape: Any, value: Any) -> Any:
    """``value`` with numbers, booleans and texts of the types that the service expects, to which
    CloudFormation converts them."""
    if isinstance(value, Mapping) and shape.type_name == "structure":
        return {
            key: _typed(shape.members[key], item) if key in shape.members else item
            for key, item in value.items()
        }
    if isinstance(value, Mapping) and shape.type_name == "map":
        return {key: _typed(shape.value, item) for key, item in value.items()}
    if isinstance(value, list) and shape.type_name == "list":
        return [_typed(shape.member, item) for item in value]
    if shape.type_name == "string" and isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if shape.type_name == "boolean" and value in ("true", "false"):
        return value == "true"
    if shape.type_name in _NUMBERS and isinstance(value, str):
        try:
            return _NUMBERS[shape.type_name](value)
        except ValueError:
            return value  # the service rejects it
    return value


_NUMBERS: dict[str, Callable[[str], Any]] = {
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
}


class ModelResource(MotoModel):
    """``AWS::SageMaker::Model``."""

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str, **of: Any
    ) -> SandboxModel:
        parameters = _parameters("Model", document, region, of)
        return backend_of(region).register_model(parameters)


class EndpointConfigResource(FakeEndpointConfig):
    """``AWS::SageMaker::EndpointConfig``."""

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str, **of: Any
    ) -> EndpointConfig:
        parameters = _parameters("EndpointConfig", document, region, of)
        return backend_of(region).register_endpoint_config(parameters)


class EndpointResource(FakeEndpoint):
    """``AWS::SageMaker::Endpoint``."""

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str, **of: Any
    ) -> SandboxEndpoint:
        parameters = _parameters("Endpoint", document, region, of)
        return backend_of(region).register_endpoint(parameters)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str
    ) -> None:
        """Delete it and wait, also while it is still being created."""
        name = resource_name.rpartition("/")[2]
        found = backend_of(region).endpoints.get(name)
        if found:
            found.join()
            backend_of(region).delete_endpoint(name)


def update_endpoint(endpoint: SandboxEndpoint, document: Mapping[str, Any], region: str) -> None:
    """Update an endpoint to the properties of a template and wait. Raises ResourceFailed."""
    shape = service_model("sagemaker").operation_model("UpdateEndpoint").input_shape
    given = _typed(shape, document.get("Properties") or {})
    parameters = {**given, "EndpointName": endpoint.endpoint_name}
    tags = parameters.pop("Tags", [])
    check_request("update_endpoint", parameters, region)
    backend_of(region).update_endpoint(parameters)
    endpoint.join()
    backend_of(region).add_tags(endpoint.arn, tags)
    require_service(endpoint)
    if endpoint.endpoint_config_name != parameters["EndpointConfigName"]:
        raise ResourceFailed(endpoint.failure_reason or "the update was rolled back")


def require_service(endpoint: SandboxEndpoint) -> None:
    """Raise ResourceFailed unless the endpoint serves."""
    if endpoint.serving is None or endpoint.endpoint_status != "InService":
        reason = endpoint.failure_reason or f"the endpoint is {endpoint.endpoint_status}"
        raise ResourceFailed(reason)


def add_stack_tags(
    resource: SandboxModel | EndpointConfig | SandboxEndpoint,
    stack_id: str,
    logical_id: str,
    tags: Mapping[str, str],
) -> None:
    """Add the tags of the stack, and CloudFormation's own: which resource of which stack it is."""
    added = {
        **tags,
        "aws:cloudformation:stack-id": stack_id,
        "aws:cloudformation:stack-name": stack_id.split("/")[1],
        "aws:cloudformation:logical-id": logical_id,
    }
    with LOCK:
        own = {tag["Key"] for tag in resource.tags}
        resource.tags = [
            *resource.tags,
            *({"Key": key, "Value": value} for key, value in added.items() if key not in own),
        ]


RESOURCES = {
    "AWS::SageMaker::Model": ModelResource,
    "AWS::SageMaker::EndpointConfig": EndpointConfigResource,
    "AWS::SageMaker::Endpoint": EndpointResource,
}
"""Type in a template -> its class, in the place of moto's."""

NAME_PROPERTIES = {
    "AWS::SageMaker::Model": "ModelName",
    "AWS::SageMaker::EndpointConfig": "EndpointConfigName",
    "AWS::SageMaker::Endpoint": "EndpointName",
}


def in_order(resources: Mapping[str, Any]) -> list[str]:
    """The names of the resources, each after those that it refers to."""
    graph = {
        name: {other for other in _references(document) if other in resources}
        for name, document in resources.items()
    }
    return list(TopologicalSorter(graph).static_order())


def _references(value: Any) -> Iterator[str]:
    """The names that a part of a template refers to."""
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        names = item if isinstance(item, list) else [item]
        texts = [name for name in names if isinstance(name, str)]
        if key in ("Ref", "DependsOn"):
            yield from texts
        elif key == "Fn::GetAtt":
            yield from (name.partition(".")[0] for name in texts[:1])
        elif key == "Fn::Sub":
            yield from (name for text in texts[:1] for name in _SUB.findall(text))
        yield from _references(item)


class ScheduleResource(CloudFormationModel):
    """The type of a schedule in a template."""

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::Scheduler::Schedule"

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str, **of: Any
    ) -> Schedule:
        made = scheduler_backends[ACCOUNT][region].create_schedule(
            **_given(resource_name, document), action_after_completion=None
        )
        vars(made)["physical_resource_id"] = made.name
        return made

    @classmethod
    def update_from_cloudformation_json(
        cls, schedule: Schedule, _: str, document: Mapping[str, Any], __: str, region: str
    ) -> Schedule:
        given = _given(schedule.name, document)
        return scheduler_backends[ACCOUNT][region].update_schedule(**given)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str
    ) -> None:
        with suppress(ScheduleNotFound):  # it may have been deleted by someone else
            scheduler_backends[ACCOUNT][region].delete_schedule(None, resource_name)


def _given(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    properties = document.get("Properties") or {}
    given = {parameter: properties.get(key) for parameter, key in _OF_SCHEDULE.items()}
    return {**given, "name": properties.get("Name", name)}
