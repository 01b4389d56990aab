r"""A request against botocore's service model.

botocore itself rejects unknown and missing keys, wrong types and values below a minimum. It sends
values over a maximum, outside an enumeration or unlike a pattern, and AWS rejects them. Here all of
these are reported at once.

The patterns are Java's, which knows Unicode classes (``\p{L}``: letters). Python does not, so a
pattern is translated for each value: the class becomes the characters of the value that belong to
it. boto3 joins a ``CopySource`` given as bucket and key before it sends it; so does this module.
"""

from __future__ import annotations

import functools
import re
import unicodedata
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, NamedTuple

import botocore
import botocore.session
from botocore import xform_name

from peagle.errors import nearest
from peagle.text import shortened

_CLASS = re.compile(r"\\p\{(?P<name>\w+)\}")
_ASCII_CLASSES = {"Alnum": "a-zA-Z0-9", "Alpha": "a-zA-Z", "Digit": "0-9", "Print": r"\x20-\x7e"}
"""Java's POSIX classes mean ASCII only."""

_SURROGATES = r"\uD800\uDC00-\uDBFF\uDFFF"
_ABOVE_BMP = r"\U00010000-\U0010FFFF"
"""All characters beyond U+FFFF, written as Java writes them and as Python does."""

_NO_CHARACTER = r"\udfff"
"""Half a surrogate pair, which no text to send contains: it represents an empty class."""


def matches(pattern: str, value: str) -> bool:
    """Whether ``value`` matches AWS's ``pattern``; True for a pattern that Python cannot read."""
    regex = _compiled(_for_value(pattern, value))
    return regex is None or regex.fullmatch(value) is not None


def _for_value(pattern: str, value: str) -> str:
    # A class that ends in its hyphen may not be read as a range by Python.
    pattern = pattern.replace(_SURROGATES, _ABOVE_BMP).replace(r"\w-_", r"\w\-_")

    def members(found: re.Match[str]) -> str:
        one, before = of_class(found["name"]), pattern[: found.start()]
        is_inside = before.rfind("[") > before.rfind("]")
        return one if is_inside else f"[{one}]"

    def of_class(name: str) -> str:
        if name in _ASCII_CLASSES:
            return _ASCII_CLASSES[name]
        inside = {c for c in value if unicodedata.category(c).startswith(name)}
        return "".join(map(re.escape, sorted(inside))) or _NO_CHARACTER

    return _CLASS.sub(members, pattern)


@functools.lru_cache(maxsize=512)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # here [[ is a bracket, not a set
        try:
            return re.compile(pattern, re.ASCII)
        except re.error:
            return None


_SHOWN = 60
"""Characters of a wrong value that a message repeats."""

_FEW = 12
"""The most allowed values that a message lists; of more, it names the nearest."""

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "structure": ((Mapping,), "keys with values"),
    "map": ((Mapping,), "keys with values"),
    "list": ((list, tuple), "a list"),
    "string": ((str,), "text"),
    "character": ((str,), "text"),
    "integer": ((int,), "a whole number"),
    "long": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "double": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "timestamp": ((date, str, int, float), "a time"),
}
"""Type in the service model -> Python types, and their name in messages. Blobs are not checked."""


@dataclass(frozen=True)
class Invalid:
    """A value that AWS would reject: the key's path, what is wrong, and how to fix it.

    ``aws_message`` is the constraint in AWS's own words, where they are known.
    """

    path: str
    message: str
    fix: str
    aws_message: str = ""

    @property
    def text(self) -> str:
        """Path and message in one line."""
        return f"{self.path}: {self.message}" if self.path else self.message


class UnknownKey(Invalid):
    """A key that the service model lacks; a newer version of the service may know it."""


class _Path(NamedTuple):
    """Where a value is: as this package writes it (``Tags[0].Key``) and as AWS does
    (``tags.1.member.key``)."""

    text: str
    aws: str

    def key(self, name: str) -> _Path:
        """A key of the structure at this path."""
        aws = name[:1].lower() + name[1:]
        if not self.text:
            return _Path(name, aws)
        return _Path(f"{self.text}.{name}", f"{self.aws}.{aws}")

    def invalid(self, value: Any, message: str, fix: str = "", constraint: str = "") -> Invalid:
        """``value`` at this path is invalid; ``constraint`` is AWS's wording."""
        if constraint:
            given = "null" if value is None else f"'{value}'"
            if isinstance(value, Mapping | list | tuple):
                given = f"of {len(value)} members"
            place = f"Value {given} at '{self.aws}'"
            constraint = f"{place} failed to satisfy constraint: Member must {constraint}"
        return Invalid(self.text, message, fix, constraint)


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


_INSTANCE_TYPE = re.compile(r"ml\.[a-z]+\d[a-z0-9\-]*\.(?:medium|large|\d*xlarge)")


def against_model(
    service: str,
    operation: str,
    parameters: Mapping[str, Any],
    instance_types: Collection[str] | None = None,
) -> list[Invalid]:
    """Everything in ``parameters`` that the model of ``operation`` (``create_model``) forbids.

    botocore may be older than an instance type: ``instance_types`` are allowed as well, by default
    every name with the form of one. Plans name only types of the catalogue.
    """
    shape = service_model(service).operation_model(api_name(service, operation)).input_shape
    if shape is None:
        return []
    return list(_invalid(shape, parameters, _Path("", ""), instance_types))


def _invalid(
    shape: Any, value: Any, path: _Path, types: Collection[str] | None
) -> Iterator[Invalid]:
    wrong = _wrong_type(shape, value, path)
    if wrong:
        yield wrong
        return
    size = _wrong_size(shape, value, path)
    if size:
        yield size
    if shape.type_name == "structure":
        yield from _structure(shape, value, path, types)
    elif shape.type_name == "list":
        for number, item in enumerate(value):
            inner = _Path(f"{path.text}[{number}]", f"{path.aws}.{number + 1}.member")
            yield from _invalid(shape.member, item, inner, types)
    elif shape.type_name == "map":
        for key, item in value.items():
            text = f"{path.text}.{_short(key)}"
            name = _Path(f"{text} (the name)", f"{path.aws}.key")
            yield from _invalid(shape.key, key, name, types)
            yield from _invalid(shape.value, item, _Path(text, f"{path.aws}.{key}.member"), types)
    elif shape.type_name == "string" and not size:
        yield from _text(shape, value, path, types)


def _structure(
    shape: Any, value: Mapping[str, Any], path: _Path, types: Collection[str] | None
) -> Iterator[Invalid]:
    for name, item in value.items():
        inner = path.key(str(name))
        if name in shape.members:
            yield from _invalid(shape.members[name], item, inner, types)
        else:
            fix = nearest(str(name), shape.members) or _listed("keys", list(shape.members))
            yield UnknownKey(inner.text, "unknown key", fix)
    for name in shape.required_members:
        if name not in value:
            yield path.key(name).invalid(None, "missing key", "add the key", "not be null")
    if getattr(shape, "is_tagged_union", False) and len(value) != 1:
        known = ", ".join(shape.members)
        yield path.invalid(value, f"exactly one of {known} must be given", "keep one of them")


def _wrong_type(shape: Any, value: Any, path: _Path) -> Invalid | None:
    types, name = _TYPES.get(shape.type_name, ((), ""))
    # In Python a bool is an int, which AWS rejects.
    is_other_bool = isinstance(value, bool) and shape.type_name != "boolean"
    if not types or (isinstance(value, types) and not is_other_bool):
        return None
    found = "nothing" if value is None else _short(repr(value))
    return path.invalid(value, f"expected {name}, found {found}")


def _wrong_size(shape: Any, value: Any, path: _Path) -> Invalid | None:
    low, high = shape.metadata.get("min"), shape.metadata.get("max")
    if (low is None and high is None) or shape.type_name in ("blob", "timestamp", "boolean"):
        return None
    unit = {"string": "characters", "list": "entries", "map": "entries"}.get(shape.type_name, "")
    size = len(value) if unit else value
    if (high is None or size <= high) and (low is None or size >= low):
        return None
    if high is None:
        allowed = f"at least {low}"
    else:
        allowed = f"from {low} to {high}" if low else f"at most {high}"
    has = f"has {size:,} {unit}" if unit else f"is {size}"
    over = high is not None and size > high
    bound = f"less than or equal to {high}" if over else f"greater than or equal to {low}"
    constraint = f"have {'length' if unit else 'value'} {bound}"
    return path.invalid(value, f"{has}; allowed: {allowed}", "", constraint)


def _text(shape: Any, value: str, path: _Path, types: Collection[str] | None) -> Iterator[Invalid]:
    allowed = list(getattr(shape, "enum", None) or ())
    newer = shape.name.endswith("InstanceType") and (
        _INSTANCE_TYPE.fullmatch(value) if types is None else value in types
    )
    if allowed and value not in allowed and not newer:
        message = f"{_short(value)!r} is not one of the {len(allowed)} allowed values"
        constraint = f"satisfy enum value set: [{', '.join(allowed)}]"
        yield path.invalid(value, message, _one_of(value, allowed), constraint)
    pattern = shape.metadata.get("pattern")
    if pattern and not matches(pattern, value):
        message = f"{_short(value)!r} does not match AWS's pattern {pattern}"
        yield path.invalid(value, message, "", f"satisfy regular expression pattern: {pattern}")


def _one_of(value: str, allowed: Sequence[str]) -> str:
    near = nearest(value, allowed)
    if len(allowed) <= _FEW:
        return "; ".join(filter(None, (near, _listed("allowed", allowed))))
    near = near or f"such as {', '.join(allowed[:3])}"
    return (
        f"{near} These are the values of botocore {botocore.__version__}; a newer version may have "
        "more"
    )


def _listed(what: str, names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _FEW else ""
    return f"{what}: {', '.join(list(names)[:_FEW])}{more}"


def _short(value: Any) -> str:
    return shortened(str(value), _SHOWN)


_SOURCE = "CopySource"
_REQUIRED = ("Bucket", "Key")


def copy_source(
    service: str, parameters: Mapping[str, Any]
) -> tuple[list[Invalid], Mapping[str, Any]]:
    """The errors of a ``CopySource`` given in parts, and the parameters with it as one text."""
    given = parameters.get(_SOURCE)
    if service != "s3" or not isinstance(given, Mapping):
        return [], parameters
    wrong = [
        Invalid(f"{_SOURCE}.{name}", "missing key", "add the key")
        if name not in given
        else Invalid(f"{_SOURCE}.{name}", f"expected text, found {given[name]!r}", "")
        for name in _REQUIRED
        if not isinstance(given.get(name), str)
    ]
    version = given.get("VersionId")
    text = f"{given.get('Bucket')}/{given.get('Key')}"
    joined = text if version is None else f"{text}?versionId={version}"
    return wrong, {**parameters, _SOURCE: joined}
