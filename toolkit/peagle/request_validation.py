"""The limits of AWS's API models, which the sandbox enforces as AWS does.

botocore's own validator knows types, required keys and unknown ones. It sends values that break a
limit of the service's model (names, sizes, times, enumerations), which are reported here.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.validate import ParamValidator

from peagle.text import shortened

_BY_SIZE = ("Invalid length", "Invalid range")
"""How botocore's reports about lower limits begin; all limits are reported here."""


def validate(
    service: str,
    operation: str,
    parameters: Mapping[str, Any],
    instance_types: Collection[str],
) -> tuple[str, ...]:
    """Messages about everything that AWS would reject in this call, named as in boto3, where known
    each with the path of the key. botocore may be older than an instance type: ``instance_types``
    are allowed as well."""
    shape = service_model(service).operation_model(_api_names(service)[operation]).input_shape
    if shape is None:
        return ()
    report = ParamValidator().validate(parameters, shape).generate_report()
    wrong = tuple(line for line in report.splitlines() if not line.startswith(_BY_SIZE))
    if any(line.startswith("Invalid type") for line in wrong):
        return wrong  # the limits are those of values of the right type
    return (*wrong, *_check_limits(shape, parameters, "", instance_types))


@functools.cache
def service_model(service: str) -> Any:
    """botocore's model of ``service``; read from botocore's files."""
    return botocore.session.get_session().get_service_model(service)


@functools.cache
def _api_names(service: str) -> dict[str, str]:
    """``create_model`` -> ``CreateModel``."""
    return {xform_name(name): name for name in service_model(service).operation_names}


def _check_limits(shape: Any, value: Any, path: str, types: Collection[str]) -> Iterator[str]:
    """Values, of the right type, that break a limit of the model. ``path`` is written as in the
    request (``Tags[0].Key``)."""
    kind = shape.type_name
    unit = {"string": " characters", "list": " entries", "map": " entries"}.get(kind, "")
    if unit or kind in ("integer", "long", "float", "double"):
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        size = len(value) if unit else value
        measure = f"has {size:,}{unit}" if unit else f"is {size}"
        if high is not None and size > high:
            yield f"{path}: {measure}; allowed: at most {high}"
        elif low is not None and size < low:
            yield f"{path}: {measure}; allowed: at least {low}"
    if kind == "structure" and isinstance(value, Mapping):
        for name, item in value.items():
            if name in shape.members:
                inside = f"{path}.{name}" if path else name
                yield from _check_limits(shape.members[name], item, inside, types)
    elif kind == "list":
        for number, item in enumerate(value):
            yield from _check_limits(shape.member, item, f"{path}[{number}]", types)
    elif kind == "map":
        for key, item in value.items():
            name = shortened(key, 60)
            yield from _check_limits(shape.key, key, f"{path}.{name} (the name)", types)
            yield from _check_limits(shape.value, item, f"{path}.{name}", types)
    elif kind == "string":
        allowed = list(getattr(shape, "enum", None) or ())
        newer = shape.name.endswith("InstanceType") and value in types
        if allowed and value not in allowed and not newer:
            text = shortened(value, 60)
            yield f"{path}: {text!r} is not one of the {len(allowed)} allowed values"
        pattern = shape.metadata.get("pattern")
        regex = _compiled(pattern) if pattern else None
        if regex and not regex.fullmatch(value):
            yield f"{path}: {shortened(value, 60)!r} does not match AWS's pattern {pattern}"


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern; ``None`` for one that only Java can read, such as with classes of Unicode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # here [[ is a bracket, not a set
        try:
            return None if r"\p{" in pattern else re.compile(pattern, re.ASCII)
        except re.error:
            return None
