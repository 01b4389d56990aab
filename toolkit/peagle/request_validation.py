"""What AWS would reject in a request, which the sandbox rejects too.

botocore's own validator knows types, required keys and unknown ones. It sends values that break a
limit of the service's model (names, sizes, times, enumerations), which are reported here.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore import xform_name
from botocore.validate import ParamValidator

from peagle.errors import nearest
from peagle.text import shortened

_BY_SIZE = ("Invalid length", "Invalid range")
"""How botocore's reports about lower limits begin; all limits are reported here."""

_INSTANCE_TYPE = re.compile(r"ml\.[a-z]+\d[a-z0-9\-]*\.(?:medium|large|\d*xlarge)")


@dataclass(frozen=True)
class Invalid:
    """A value that AWS would reject: the key's path, what is wrong, and how to fix it."""

    path: str
    message: str
    fix: str = ""


def validate(
    service: str,
    operation: str,
    parameters: Mapping[str, Any],
    instance_types: Collection[str] | None = None,
) -> tuple[Invalid, ...]:
    """Everything that AWS would reject in this call, named as in boto3.

    botocore may be older than an instance type: ``instance_types`` are allowed as well, by default
    every name with the form of one.
    """
    shape = service_model(service).operation_model(api_name(service, operation)).input_shape
    if shape is None:
        return ()
    report = ParamValidator().validate(parameters, shape).generate_report()
    lines = (line for line in report.splitlines() if not line.startswith(_BY_SIZE))
    wrong = tuple(Invalid("", line) for line in lines)
    if any(invalid.message.startswith("Invalid type") for invalid in wrong):
        return wrong  # the limits are those of values of the right type
    return (*wrong, *_check_limits(shape, parameters, "", instance_types))


@functools.cache
def service_model(service: str) -> Any:
    """botocore's model of ``service``; read from botocore's files."""
    return botocore.session.get_session().get_service_model(service)


@functools.cache
def _api_names(service: str) -> dict[str, str]:
    return {xform_name(name): name for name in service_model(service).operation_names}


def api_name(service: str, operation: str) -> str:
    """``create_model`` -> ``CreateModel``. Raises KeyError for an unknown operation."""
    return _api_names(service)[operation]


def _check_limits(
    shape: Any, value: Any, path: str, types: Collection[str] | None
) -> Iterator[Invalid]:
    """Values, of the right type, that break a limit of the model. ``path`` is written as in the
    request (``Tags[0].Key``)."""
    kind = shape.type_name
    unit = {"string": " characters", "list": " entries", "map": " entries"}.get(kind, "")
    if unit or kind in ("integer", "long", "float", "double"):
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        size = len(value) if unit else value
        measure = f"has {size:,}{unit}" if unit else f"is {size}"
        if high is not None and size > high:
            yield Invalid(path, f"{measure}; allowed: at most {high}")
        elif low is not None and size < low:
            yield Invalid(path, f"{measure}; allowed: at least {low}")
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
        newer = shape.name.endswith("InstanceType") and (
            _INSTANCE_TYPE.fullmatch(value) if types is None else value in types
        )
        if allowed and value not in allowed and not newer:
            message = f"{shortened(value, 60)!r} is not one of the {len(allowed)} allowed values"
            near = nearest(value, allowed) or f"such as {', '.join(allowed[:3])}"
            yield Invalid(path, message, near)
        pattern = shape.metadata.get("pattern")
        regex = _compiled(pattern) if pattern else None
        if regex and not regex.fullmatch(value):
            message = f"{shortened(value, 60)!r} does not match AWS's pattern {pattern}"
            yield Invalid(path, message)


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """The pattern; ``None`` for one that only Java can read, such as with classes of Unicode."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # here [[ is a bracket, not a set
        try:
            return None if r"\p{" in pattern else re.compile(pattern, re.ASCII)
        except re.error:
            return None
