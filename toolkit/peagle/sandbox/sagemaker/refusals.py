"""What SageMaker says when it refuses, word for word where the words are known.

Check a request against AWS's own service model, and refuse it in AWS's words.

botocore's model holds the limits that the service enforces: required members, lengths, ranges,
enums and patterns. Clients check only some of them, moto almost none. What the model does not
hold (the 32 KB for an environment, one-of rules) stands in API documentation only.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import botocore.session
from moto.core.exceptions import ServiceException
from moto.sagemaker.exceptions import ValidationError


class ResourceLimitExceeded(ServiceException):
    """A quota is used up."""

    code = "ResourceLimitExceeded"


def exists(kind: str, arn: str) -> ValidationError:
    """A name is taken."""
    return ValidationError(f'Cannot create already existing {kind} "{arn}".')


def missing(kind: str, arn: str) -> ValidationError:
    """There is nothing of that name."""
    return ValidationError(f'Could not find {kind} "{arn}".')


def busy(arn: str) -> ValidationError:
    """The endpoint is being created or updated."""
    return ValidationError(f'Cannot update in-progress endpoint "{arn}".')


def in_use(kind: str, arn: str, endpoint_arn: str) -> ValidationError:
    """Something that an endpoint needs. AWS forbids this in its documentation but lets it
    happen for some kinds; the words are ours."""
    return ValidationError(f'Cannot delete {kind} "{arn}": endpoint "{endpoint_arn}" uses it.')


def failed_endpoint(arn: str) -> ValidationError:
    """Only DeleteEndpoint is possible on a failed endpoint (API_EndpointSummary); our words."""
    return ValidationError(f'Cannot update failed endpoint "{arn}"; delete it.')


def over_quota(instance_type: str, quota: float, used: int, wanted: int) -> ResourceLimitExceeded:
    """No instance of that type is left."""
    return ResourceLimitExceeded(
        f"The account-level service limit '{instance_type} for endpoint usage' is {quota:.0f} "
        f"Instances, with current utilization of {used} Instances and a request delta of "
        f"{wanted} Instances. Please use AWS Service Quotas to request an increase for this "
        "quota. If AWS Service Quotas is not available, contact AWS support to request an "
        "increase for this quota."
    )


ENVIRONMENT_BYTES = 32 * 1024
"""All keys and values of all containers of a model; API_ContainerDefinition, Environment."""


def check(operation: str, parameters: Mapping[str, Any]) -> None:
    """Raise ValidationException, naming every problem, if the service would refuse this."""
    shape = _service().operation_model(operation).input_shape
    refuse(list(_problems(shape, parameters, "")))


def check_environments(containers: list[Mapping[str, Any]]) -> None:
    """Raise ValidationException if the containers' environments are too large together."""
    size = sum(
        len(key.encode()) + len(value.encode())
        for container in containers
        for key, value in (container.get("Environment") or {}).items()
    )
    if size > ENVIRONMENT_BYTES:
        refuse(
            [
                f"Value of {size} bytes at 'environment' failed to satisfy constraint: "
                f"Member must have length less than or equal to {ENVIRONMENT_BYTES}"
            ]
        )


def refuse(problems: list[str]) -> None:
    """Raise ValidationException if there are problems."""
    if problems:
        detected = "error" if len(problems) == 1 else "errors"
        text = "; ".join(problems)
        raise ValidationError(f"{len(problems)} validation {detected} detected: {text}")


@functools.cache
def _service() -> Any:
    return botocore.session.get_session().get_service_model("sagemaker")


def _problems(shape: Any, value: Any, path: str) -> Iterator[str]:
    """The problems of ``value`` and of all that is in it."""
    for broken in _broken_rules(shape, value):
        yield f"Value {_shown(value)} at '{path}' failed to satisfy constraint: {broken}"
    if shape.type_name == "structure":
        yield from _structure_problems(shape, value, path)
    elif shape.type_name == "list":
        for number, item in enumerate(value, start=1):
            yield from _problems(shape.member, item, f"{path}.{number}.member")
    elif shape.type_name == "map":
        for key, item in value.items():
            yield from _problems(shape.key, key, f"{path}.key")
            yield from _problems(shape.value, item, f"{path}.{key}.member")


def _structure_problems(shape: Any, value: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, member in shape.members.items():
        inner = f"{path}.{_camel(name)}" if path else _camel(name)
        if value.get(name) is not None:
            yield from _problems(member, value[name], inner)
        elif name in shape.required_members:
            yield f"Value null at '{inner}' failed to satisfy constraint: Member must not be null"


def _broken_rules(shape: Any, value: Any) -> Iterator[str]:
    if shape.type_name in ("structure", "boolean", "timestamp", "blob"):
        return
    yield from _size_rules(shape, value)
    enum = getattr(shape, "enum", None)
    if enum and value not in enum:
        yield f"Member must satisfy enum value set: [{', '.join(enum)}]"
    pattern = shape.metadata.get("pattern")
    regex = _compiled(pattern) if pattern and shape.type_name == "string" else None
    if regex and not regex.fullmatch(value):
        yield f"Member must satisfy regular expression pattern: {pattern}"


def _size_rules(shape: Any, value: Any) -> Iterator[str]:
    sized = shape.type_name in ("string", "list", "map")
    what, size = ("length", len(value)) if sized else ("value", value)
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if high is not None and size > high:
        yield f"Member must have {what} less than or equal to {high}"
    if low is not None and size < low:
        yield f"Member must have {what} greater than or equal to {low}"


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """``None`` for patterns with Java's own character classes, such as ``\\p{L}``."""
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _shown(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str | int | float) else f"of {len(value)} members"


def _camel(name: str) -> str:
    return name[:1].lower() + name[1:]
