"""AWS's answers, checked against botocore's models, so that no caller meets another type.

botocore parses an answer and passes on whatever a JSON document has: text for a number, a list for
an object. A proxy, a substitute of AWS, or a damaged connection can send that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from peagle.aws.errors import UNREACHABLE_FIX, translated
from peagle.errors import CloudError, understood

_LARGEST = 2**63
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "structure": dict, "map": dict, "list": list, "string": str, "character": str, "boolean": bool,
    "integer": int, "long": int, "float": (int, float), "double": (int, float),
    "timestamp": datetime,
}  # fmt: skip
"""Type of a shape in a service's model -> types of Python."""

_DECODED = "policyDocumentType"
"""The shape of IAM's policies, which botocore decodes into objects."""


class InvalidAnswer(CloudError, KeyError, code="invalid-response"):
    """AWS, or what stands between it and this machine, sent another answer than its model says."""


@contextmanager
def receiving(service: str, operation: str, region: str) -> Iterator[None]:
    """Raise the errors of a call as PeagleErrors, those of botocore's parsers too."""
    what = f"the answer to {service}:{operation}"
    with understood(what, CloudError, UNREACHABLE_FIX), translated(service, region):
        yield


def watch_answers(client: Any, service: str) -> None:
    """Check every answer that a boto3 client receives; an invalid one raises InvalidAnswer."""

    def check(http_response: Any, parsed: Any, model: Any, **_: Any) -> None:
        if http_response.status_code < 300 and model.output_shape is not None:
            problem = _problem(model.output_shape, parsed, "")
            if problem:
                raise _invalid(f"{service}:{model.name}", problem)

    client.meta.events.register_last("after-call", check)


def _problem(shape: Any, value: Any, path: str) -> str:
    """What is wrong with the value, and where; empty if it is as the model says."""
    kind = shape.type_name
    if kind not in _TYPES or shape.name == _DECODED or getattr(shape, "is_document_type", False):
        return ""
    if shape.serialization.get("eventstream"):  # an iterator, which is read later
        return ""
    good = isinstance(value, _TYPES[kind]) and (kind == "boolean" or type(value) is not bool)
    if good and kind in ("integer", "long", "float", "double"):
        good = math.isfinite(value) and abs(value) < _LARGEST
    if not good:
        return f"{path or 'the answer'} is {ascii(value)[:40]}, not a {kind}"
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


class AwsAnswer(dict[str, Any]):
    """An object of AWS's answer. A key that it lacks raises InvalidAnswer, with its name."""

    __slots__ = ("_call",)

    def __init__(self, content: Mapping[str, Any], call: str) -> None:
        super().__init__({key: as_answer(value, call) for key, value in content.items()})
        self._call = call

    def __missing__(self, key: str) -> Any:
        raise _invalid(self._call, f"it has no {key}")


def as_answer(value: Any, call: str) -> Any:
    """The value with each object as an ``AwsAnswer`` to ``call``, such as ``s3:head_object``."""
    if isinstance(value, dict):
        return AwsAnswer(value, call)
    return [as_answer(one, call) for one in value] if isinstance(value, list) else value


def _invalid(call: str, problem: str) -> InvalidAnswer:
    return InvalidAnswer(f"the answer to {call} has an unknown format: {problem}", UNREACHABLE_FIX)
