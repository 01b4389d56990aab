"""Validates a document against a model; a problem has the key, and what is expected and found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from peagle.catalog.documents import Document, Location, Problem, dotted
from peagle.errors import nearest

Model = TypeVar("Model", bound=BaseModel)

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "keys with values",
    "model_type": "keys with values",
    "date_type": "a date such as 2026-07-01",
    "date_parsing": "a date such as 2026-07-01",
    "date_from_datetime_parsing": "a date such as 2026-07-01",
    "date_from_datetime_inexact": "a date such as 2026-07-01",
}
"""pydantic's error types -> what a YAML file must have there."""

_PATTERNS = (
    (r"^\d+\.\d+", 'a version such as "0.28.0"'),
    (r"^(>=|", 'a range of versions such as ">=0.18.0,<0.22.0"'),
    (r"^[a-z0-9][", "lower-case letters, digits, dots and hyphens"),
    (r"^[A-Za-z0-9]", "a Hugging Face id such as openai/gpt-oss-20b"),
    (r"^ml\.", "an instance type such as ml.g6e.2xlarge"),
    (r"^sm_", "a GPU architecture such as sm_90"),
)
"""The beginning of a pattern of the models, and its meaning."""

_BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}


def validate(document: Document, model: type[Model]) -> tuple[Model | None, list[Problem]]:
    """The document as ``model``, or ``None`` and all problems."""
    if not isinstance(document.data, dict):
        message = f"expected keys with values, found {_kind(document.data)}"
        return None, [Problem(document.file, 1, "", message, "")]
    try:
        return cast(Model, _entry(document, model)), []
    except ValidationError as error:
        # A misspelt key is also a missing key; its own line helps more, so it comes first.
        found = sorted(
            _explain(error, document, model), key=lambda found: (found[0], found[1].line)
        )
        return None, [problem for _, problem in found]


@lru_cache(maxsize=64)
def _entry(document: Document, model: type[BaseModel]) -> BaseModel:
    return model.model_validate_json(json.dumps(document.data))


def problem_at(document: Document, location: Location, message: str, fix: str) -> Problem:
    """A problem with its file, line and key."""
    return Problem(document.file, document.line(location), dotted(location), message, fix)


def _explain(
    error: ValidationError, document: Document, model: type[BaseModel]
) -> Iterator[tuple[bool, Problem]]:
    """Each problem, and whether it is that of a missing key."""
    # A value that may have several types has one error for each; they become one problem.
    by_location: dict[Location, list[ErrorDetails]] = {}
    for detail in error.errors(include_url=False):
        by_location.setdefault(_existing(document, detail), []).append(detail)
    for location, details in by_location.items():
        problem = problem_at(document, location, *_message(details, location, document, model))
        yield details[0]["type"] == "missing", problem


def _existing(document: Document, detail: ErrorDetails) -> Location:
    """The error's location without what pydantic adds to it, such as the member of a union."""
    location: Location = ()
    for step in detail["loc"]:
        if document.node((*location, step)) is None:
            break
        location = (*location, step)
    return (*location, str(detail["loc"][-1])) if detail["type"] == "missing" else location


def _message(
    details: list[ErrorDetails], location: Location, document: Document, model: type[BaseModel]
) -> tuple[str, str]:
    """The message and the fix."""
    first = details[0]
    if first["type"] == "missing":
        return "missing key", "add the key"
    if first["type"] == "extra_forbidden":
        known = sorted(_model_at(model, location[:-1]).model_fields)
        hint = nearest(str(location[-1]), known) or f"known keys: {', '.join(known)}"
        return "unknown key", hint
    expected = " or ".join(dict.fromkeys(_expected(detail) for detail in details))
    source, value = document.source(location), first["input"]
    found = repr(source) if isinstance(value, str) else source or _kind(value)
    return f"expected {expected}, found {found}", _fix(first, source or "", value)


def _expected(detail: ErrorDetails) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "literal_error":
        return f"one of {', '.join(_choices(detail))}"
    if kind == "string_pattern_mismatch":
        pattern = str(context["pattern"])
        known = [meaning for start, meaning in _PATTERNS if pattern.startswith(start)]
        return known[0] if known else f"text that matches {pattern}"
    if kind == "greater_than_equal":
        return f"a number of at least {context['ge']}"
    if kind == "greater_than":
        return f"a number above {context['gt']}"
    return _EXPECTED.get(kind, detail["msg"])


def _fix(detail: ErrorDetails, source: str, value: Any) -> str:
    kind = detail["type"]
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f'write it in quotes: "{source}"'
    if kind == "string_type" and isinstance(value, dict):
        return "quote text that contains a colon and a space"
    if kind == "literal_error":
        return nearest(source, _choices(detail))
    if kind == "bool_type" and source.lower() in _BOOLEANS:
        return f"write {_BOOLEANS[source.lower()]}"
    if kind == "tuple_type" and source:
        return f"write [{source}]"
    return ""


def _choices(detail: ErrorDetails) -> list[str]:
    return re.findall("'([^']*)'", detail["ctx"]["expected"])


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "keys with values"
    return "a list" if isinstance(value, list) else repr(value)


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel]:
    """The model that describes the keys at ``location``."""
    for step in location:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``Thing``, ``Thing | None``, ``tuple[Thing, ...]`` and the like."""
    if get_origin(annotation) is None:
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return annotation if is_model else None
    inside = (_model_in(argument) for argument in get_args(annotation))
    return next((found for found in inside if found), None)
