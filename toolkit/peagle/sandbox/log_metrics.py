"""Metric filters: log events that match a pattern become data points, as CloudWatch Logs has them.

    ""                       every event
    fail -"not this" ?one    events with these terms
    [a, b=word*, ..., n>5]   events by their fields, between spaces, quotes or brackets
    {$.level = "INFO"}       events that are JSON

A value that is not a number, such as ``0.5%``, publishes nothing, as on AWS.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from peagle.sandbox.metrics import STORE, Metric
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson

Match = Mapping[str, str]
"""What an event that matches has in it: ``$name`` or ``$.path`` -> its text."""
_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,15})?([eE][+-]?\d{1,2})?")
Pattern = Callable[[str], Match | None]


class InvalidPattern(ValueError):
    """CloudWatch Logs would refuse the pattern."""


def publish_matches(
    region: str, filters: Iterable[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> None:
    """Publish the metrics of a log group's ``filters`` for new ``events``."""
    for one in filters:
        pattern = compiled(one["filterPattern"])
        found = [(event, pattern(event["message"])) for event in events]
        for transformation in one["metricTransformations"]:
            _publish(
                region, transformation, [(e, match) for e, match in found if match is not None]
            )


def _publish(
    region: str, transformation: Mapping[str, Any], found: list[tuple[Mapping[str, Any], Match]]
) -> None:
    """One value for each match; the default value of a minute without a match is not published."""
    for event, match in found:
        value = _number(match.get(transformation["metricValue"], transformation["metricValue"]))
        dimensions = {
            (name, match.get(field, ""))
            for name, field in (transformation.get("dimensions") or {}).items()
        }
        metric = Metric(
            region,
            transformation["metricNamespace"],
            transformation["metricName"],
            frozenset(dimensions),
        )
        if value is not None:
            STORE.add(metric, value, event["timestamp"] / 1000)


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


@functools.lru_cache(maxsize=256)
def compiled(pattern: str) -> Pattern:
    """The function of a filter pattern: what it finds in an event, or ``None``. Raises
    InvalidPattern."""
    text = pattern.strip()
    if text.startswith("["):
        return _by_fields(text)
    if text.startswith("{"):
        return _by_json(text)
    return _by_terms(text)


def _by_terms(text: str) -> Pattern:
    terms: dict[str, list[str]] = {"": [], "-": [], "?": []}
    required, excluded, alternatives = terms.values()
    for sign, quoted, word in re.findall(r'([-?]?)(?:"((?:[^"\\]|\\.)*)"|(\S+))', text):
        term = re.sub(r"\\(.)", r"\1", quoted) or word
        if re.search(r"\W", word):
            raise InvalidPattern(f"the term {word} needs quotes")
        terms[sign].append(term)

    def match(message: str) -> Match | None:
        found = all(term in message for term in required)
        found = found and not any(term in message for term in excluded)
        found = found and (not alternatives or any(term in message for term in alternatives))
        return {} if found else None

    return match


_FIELD = re.compile(r'\[([^\]]*)\]|"([^"]*)"|(\S+)')
_COMPARED = re.compile(r'\s*([\w.$-]+)\s*(!=|>=|<=|=|>|<)\s*(?:"([^"]*)"|([^\s"]+))\s*')
_NUMERIC: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


@dataclass(frozen=True)
class _Field:
    """A field of a space-delimited pattern: its name, and the condition on its text."""

    name: str
    operator: str = ""
    value: str = ""

    def fits(self, text: str) -> bool:
        return not self.operator or compares(text, self.operator, self.value)


def compares(text: str, operation: str, value: str) -> bool:
    """Whether ``text`` fulfils a condition; ``*`` in ``value`` stands for anything."""
    if operation in _NUMERIC:
        left, right = _number(text), _number(value)
        return left is not None and right is not None and _NUMERIC[operation](left, right)
    left, right = _number(text), _number(value)
    same = left == right if None not in (left, right) else fnmatchcase(text, _glob(value))
    return same is (operation == "=")


def _glob(value: str) -> str:
    """Only ``*`` has a meaning in a pattern."""
    return re.sub(r"([\[?])", r"[\1]", value)


def _by_fields(text: str) -> Pattern:
    if not text.endswith("]"):
        raise InvalidPattern("the bracket is not closed")
    parts = re.split(r",(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", text[1:-1])
    fields = [_field(part.strip()) for part in parts]
    gaps = [place for place, field in enumerate(fields) if field is None]
    if len(gaps) > 1:
        raise InvalidPattern("a pattern has at most one ellipsis")

    def match(message: str) -> Match | None:
        texts = [next(filter(None, found.groups()), "") for found in _FIELD.finditer(message)]
        named = list(fields)
        if gaps:
            missing = len(texts) - (len(fields) - 1)
            if missing < 0:
                return None
            named[gaps[0] : gaps[0] + 1] = [_Field("")] * missing
        if len(named) != len(texts):
            return None
        pairs = list(zip(named, texts, strict=True))
        if not all(field is not None and field.fits(value) for field, value in pairs):
            return None
        return {f"${field.name}": value for field, value in pairs if field and field.name}

    return match


def _field(part: str) -> _Field | None:
    """``None`` is the ellipsis."""
    if part == "...":
        return None
    found = _COMPARED.fullmatch(part)
    if found:
        return _Field(found[1], found[2], found[4] if found[3] is None else found[3])
    if not re.fullmatch(r"[\w.-]*", part):
        raise InvalidPattern(f"{part!r} is not a field")
    return _Field(part)


def _by_json(text: str) -> Pattern:
    """Conditions joined by ``&&``; each compares a member with a text or a number, or says that it
    ``EXISTS``."""
    if not text.endswith("}"):
        raise InvalidPattern("the brace is not closed")
    conditions = []
    for part in text[1:-1].split("&&"):
        part = part.strip().removeprefix("(").removesuffix(")").strip()
        exists = re.fullmatch(r"\$((?:\.\w+)+)\s+EXISTS", part)
        found = _COMPARED.fullmatch(part)
        if exists:
            conditions.append((f"${exists[1]}", "", ""))
        elif found and found[1].startswith("$."):
            conditions.append((found[1], found[2], found[4] if found[3] is None else found[3]))
        else:
            raise InvalidPattern(f"{part!r} is not a condition")

    def match(message: str) -> Match | None:
        try:
            document = json_reader.read(message, "the event")
        except InvalidJson:
            return None
        members = _members(document, "$") if isinstance(document, dict) else {}
        for name, operation, value in conditions:
            if name not in members or (operation and not compares(members[name], operation, value)):
                return None
        return members

    return match


def _members(document: Mapping[str, Any], path: str) -> dict[str, str]:
    """``$.path`` -> the text of every member."""
    found: dict[str, str] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            found |= _members(value, f"{path}.{name}")
        else:
            found[f"{path}.{name}"] = str(value)
    return found
