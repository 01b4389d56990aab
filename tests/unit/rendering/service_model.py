"""Checks a request against AWS's service model more strictly than botocore itself does.

botocore lets values through that are too long, too large, not in the enumeration, or do not match
the pattern; AWS then refuses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator


def complaints(service: str, operation: str, parameters: dict[str, Any]) -> list[str]:
    """Everything in ``parameters`` that the service model of ``operation`` does not allow."""
    shape = _model(service).operation_model(_api_name(operation)).input_shape
    report = ParamValidator().validate(parameters, shape)
    found = [report.generate_report()] if report.has_errors() else []
    return [*found, *_strict(shape, parameters, operation)]


@lru_cache
def _model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


def _api_name(operation: str) -> str:
    return "".join(word.title() for word in operation.split("_"))


def _strict(shape: Any, value: Any, where: str) -> Iterator[str]:
    if shape.type_name == "structure":
        for name, item in value.items():
            if name in shape.members:
                yield from _strict(shape.members[name], item, f"{where}.{name}")
    elif shape.type_name == "list":
        yield from _size(shape, len(value), where)
        for number, item in enumerate(value):
            yield from _strict(shape.member, item, f"{where}[{number}]")
    elif shape.type_name == "map":
        yield from _size(shape, len(value), where)
        for key, item in value.items():
            yield from _strict(shape.key, key, f"{where}.<key>")
            yield from _strict(shape.value, item, f"{where}.{key}")
    elif shape.type_name == "string":
        yield from _size(shape, len(value), where)
        yield from _text(shape, value, where)
    elif shape.type_name in ("integer", "long", "float", "double"):
        yield from _size(shape, value, where)


def _size(shape: Any, size: float, where: str) -> Iterator[str]:
    limits = shape.metadata
    if size > limits.get("max", float("inf")) or size < limits.get("min", float("-inf")):
        yield f"{where}: {size} is not from {limits.get('min')} to {limits.get('max')}"


def _text(shape: Any, value: str, where: str) -> Iterator[str]:
    if shape.enum and value not in shape.enum:
        yield f"{where}: {value!r} is not in the enumeration"
    pattern = shape.metadata.get("pattern")
    if pattern:
        # Java's classes of letters, spaces and digits, as Python knows them.
        for java, python in ((r"\p{L}", r"\w"), (r"\p{Z}", r"\s"), (r"\p{N}", r"\d")):
            pattern = pattern.replace(java, python)
        if not re.fullmatch(pattern, value):
            yield f"{where}: {value!r} does not match {shape.metadata['pattern']}"
