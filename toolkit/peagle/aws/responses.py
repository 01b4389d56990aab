"""Validate AWS's responses against botocore's models, so that callers can rely on the types.

botocore parses a response and passes on any type that the JSON has: text for a number, a list for
an object. A proxy, an emulator of AWS, or a damaged connection can send that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from peagle.aws.translation import UNREACHABLE_FIX, translated
from peagle.errors import CloudError, parsing

_LARGEST = 2**63
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "structure": dict, "map": dict, "list": list, "string": str, "character": str, "boolean": bool,
    "integer": int, "long": int, "float": (int, float), "double": (int, float),
    "timestamp": datetime,
}  # fmt: skip
"""Type of a shape in a service's model -> Python types."""

_DECODED = "policyDocumentType"
"""The shape of IAM's policies, which botocore decodes into objects."""


class InvalidResponse(CloudError, KeyError, code="invalid-response"):
    """AWS, or a proxy in between, sent a response that does not match the service's model."""


@contextmanager
def receiving(
    service: str, operation: str, region: str, in_sandbox: bool = False
) -> Iterator[None]:
    """Raise the errors of a call, including those of botocore's parsers, as PeagleErrors."""
    what = f"the response to {service}:{operation}"
    with parsing(what, CloudError, UNREACHABLE_FIX), translated(service, region, in_sandbox):
        yield


def validate_responses(client: Any, service: str) -> None:
    """Check every response that a boto3 client receives; an invalid one raises InvalidResponse."""

    def check(http_response: Any, parsed: Any, model: Any, **_: Any) -> None:
        if http_response.status_code < 300 and model.output_shape is not None:
            problem = _problem(model.output_shape, parsed, "")
            if problem:
                raise _invalid(f"{service}:{model.name}", problem)

    client.meta.events.register_last("after-call", check)


def _problem(shape: Any, value: Any, path: str) -> str:
    """What is wrong with the value, and where; empty if it matches the model."""
    kind = shape.type_name
    if kind not in _TYPES or shape.name == _DECODED or getattr(shape, "is_document_type", False):
        return ""
    if shape.serialization.get("eventstream"):  # an iterator, which is read later
        return ""
    good = isinstance(value, _TYPES[kind]) and (kind == "boolean" or type(value) is not bool)
    if good and kind in ("integer", "long", "float", "double"):
        good = math.isfinite(value) and abs(value) < _LARGEST
    if not good:
        return f"{path or 'the response'} is {ascii(value)[:40]}, not a {kind}"
    if kind == "structure":
        members = shape.members
        known = ((members[key], f"{path}.{key}", one) for key, one in value.items()
                 if key in members)  # fmt: skip
    elif kind == "list":
        known = ((shape.member, f"{path}[{at}]", one) for at, one in enumerate(value))
    elif kind == "map":
        known = ((shape.value, f"{path}[{key}]", one) for key, one in value.items())
    else:
        return ""
    found = (_problem(inner, one, where.removeprefix(".")) for inner, where, one in known)
    return next(filter(None, found), "")


class AwsResponse(dict[str, Any]):
    """An object in a response of AWS. A missing key raises InvalidResponse, which names it."""

    __slots__ = ("_call",)

    def __init__(self, content: Mapping[str, Any], call: str) -> None:
        super().__init__({key: as_response(value, call) for key, value in content.items()})
        self._call = call

    def __missing__(self, key: str) -> Any:
        raise _invalid(self._call, f"it has no {key}")


def as_response(value: Any, call: str) -> Any:
    """The value with each object as an ``AwsResponse`` to ``call``, such as ``s3:head_object``."""
    if isinstance(value, dict):
        return AwsResponse(value, call)
    return [as_response(one, call) for one in value] if isinstance(value, list) else value


def _invalid(call: str, problem: str) -> InvalidResponse:
    return InvalidResponse(
        f"the response to {call} has an unknown format: {problem}", UNREACHABLE_FIX
    )
