"""Reads one YAML file into plain data, with the line of every value, and validates it as a model.

Of YAML's scalars only ``true``, ``false``, ``null``, whole numbers (``13_761_264_768`` too) and
decimal fractions have a type; everything else is text. So ``no`` is text, a date is text, and a
version such as ``0.20`` without quotes is a number, which the catalogue's models reject. There are
no merge keys and no tags, and a duplicate key is an error.

This is the toolkit's only YAML reader. Size, depth and number of values are limited: with aliases,
a file of 288 bytes can stand for a billion values.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from peagle.data import data_folder
from peagle.errors import CatalogError, Fix, nearest
from peagle_serve.json_reader import read_regular

Location = tuple[str | int, ...]
Model = TypeVar("Model", bound=BaseModel)


def folders(user_folder: Path | None) -> list[Path]:
    """The folders that make up the catalogue; a later one takes precedence."""
    bundled = data_folder("model_catalog")
    if user_folder is None or user_folder.resolve() == bundled.resolve():
        return [bundled]
    return [bundled, user_folder]


def evidence_files(user_folder: Path | None) -> list[Path]:
    """The JSON files that may hold evidence."""
    return [
        path for folder in folders(user_folder) for path in sorted(folder.glob("evidence/*.json"))
    ]


def display_path(path: Path) -> str:
    """The path as messages show it: relative to the working folder if it is below it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


class Problem(NamedTuple):
    """One error in a file. ``key`` is a path such as ``drafters[2].k_trained``, or empty."""

    file: str
    line: int | None
    key: str
    message: str
    fix: str

    @property
    def text(self) -> str:
        """File and line, key and message, as one sentence."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (where, self.key, self.message) if part)


class BadFile(CatalogError):
    """A file that cannot be read as data."""

    def __init__(
        self, file: str, message: str, fix: str = "", line: int | None = None, key: str = ""
    ) -> None:
        self.problem = Problem(file, line, key, message, fix)
        super().__init__(self.problem.text, fix)


def dotted(location: Location) -> str:
    """A location as a key path: ``drafters[2].k_trained``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def catalog_error(problems: Sequence[Problem]) -> CatalogError:
    """The first problem as an error; further ones are counted, with the command that lists them."""
    first, *others = problems
    if not others:
        return CatalogError(first.text, first.fix)
    more = f"to list {len(others)} more problems"
    sentence = f"{first.fix}; {more}" if first.fix else more
    return CatalogError(first.text, Fix(sentence, ("peagle", "catalog", "check")))


_CONSTANTS: dict[str, bool | None] = {
    "true": True, "false": False, "null": None, "~": None, "": None,
}  # fmt: skip
_WHOLE = re.compile(r"[-+]?\d+(?:_\d+)*", re.ASCII)
_FRACTION = re.compile(r"[-+]?(?:\d+(?:_\d+)*)?\.?\d+(?:[eE][-+]?\d{1,2})?", re.ASCII)
_LONGEST_NUMBER = 40
"""Maximum characters; longer text is read as text, not as a number."""


LARGEST_FILE = 1_000_000
"""Bytes. The largest bundled file has 40 thousand."""
LARGEST_EVIDENCE = 16_000_000
"""Bytes of a JSON file of measurements."""
DEEPEST = 40
"""Nested lists and mappings. The bundled files have 6."""
MOST_VALUES = 50_000
"""Scalars, lists and mappings of a file, those behind aliases included. The largest bundled file
has 1,700."""

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass
class _Open:
    """A list or mapping that has begun at ``location``. ``before``: how many values precede it;
    ``key``: that of a mapping whose value follows."""

    holder: Any
    location: Location
    anchor: str | None = None
    before: int = 0
    key: str | None = None


class Document:
    """One file's data, with the line of every value for error messages, and every scalar as text of
    the file, without its quotes."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.lines: dict[Location, int] = {}
        self.texts: dict[Location, str] = {}
        self.data = self._read(text)

    def _read(self, text: str) -> Any:
        """The data, made of YAML's events: nodes of deep nesting would overflow the C stack."""
        top: list[Any] = []
        path, values = [_Open(top, ())], 0
        anchors: dict[str | None, tuple[Any, int]] = {}
        for event in yaml.parse(text, _LOADER):
            around, size = path[-1], 1
            if isinstance(event, yaml.ScalarEvent):
                value: Any = event.value if event.style else plain_value(event.value)
                anchors[event.anchor] = value, 1
            elif isinstance(event, yaml.CollectionStartEvent):
                value = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            elif isinstance(event, yaml.CollectionEndEvent):
                ended = path.pop()
                anchors[ended.anchor] = ended.holder, values - ended.before
                continue
            elif isinstance(event, yaml.AliasEvent):
                if event.anchor not in anchors:
                    raise self._bad("refers to itself or to nothing", "remove the alias", event)
                value, size = anchors[event.anchor]
            elif isinstance(event, yaml.DocumentStartEvent) and top:
                raise self._bad("has more than one document", "write one", event)
            else:
                continue
            location = around.location
            if isinstance(around.holder, list):
                location += (len(around.holder),) if around.holder is not top else ()
                around.holder.append(value)
            elif around.key is not None:
                location += (around.key,)
                around.holder[around.key], around.key = value, None
            elif not isinstance(event, yaml.ScalarEvent):
                raise self._bad("a key must be plain text", "write `name: value`", event)
            elif event.value in around.holder:
                raise self._bad("duplicate key", "keep one of the two", event, event.value)
            else:
                around.key = event.value
                continue
            mark: Any = event.start_mark
            self.lines[location] = mark.line + 1
            if not isinstance(value, list | dict):
                self.texts[location] = getattr(event, "value", str(value))
            if isinstance(event, yaml.CollectionStartEvent):
                path.append(_Open(value, location, event.anchor, values))
            values += size
            if len(path) > DEEPEST + 1 or values > MOST_VALUES:
                message = f"has more than {MOST_VALUES:,} values, or {DEEPEST} levels"
                raise self._bad(message, "split the file, or use fewer aliases", event)
        return top[0] if top else None

    def _bad(self, message: str, fix: str, at: yaml.Event, key: str = "") -> BadFile:
        mark: Any = at.start_mark
        return BadFile(self.file, message, fix, mark.line + 1, key)

    def line(self, location: Location) -> int | None:
        """The line of the value at ``location``, or of the nearest one around it."""
        around = (location[:end] for end in range(len(location), -1, -1))
        return next((self.lines[each] for each in around if each in self.lines), None)


def read_bytes(path: Path, limit: int = LARGEST_EVIDENCE) -> bytes:
    """The content of the file; raises BadFile if it cannot be read, or is larger than ``limit``."""
    try:
        return read_regular(path, limit)
    except OSError as error:
        fix = "check the file and its permissions"
        raise BadFile(display_path(path), f"cannot be read: {error.strerror}", fix) from error


def read_document(path: Path, file: str) -> Document:
    """The YAML file ``path``, called ``file`` in messages; raises BadFile if it is not YAML."""
    try:
        return parse_document(read_bytes(path, LARGEST_FILE).decode("utf-8"), file)
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 (invalid byte at offset {error.start})"
        raise BadFile(file, problem, "save it as UTF-8") from error


@lru_cache(maxsize=64)  # a process that loads the catalogue again parses only what has changed
def parse_document(text: str, file: str) -> Document:
    """The YAML ``text`` of ``file``; raises BadFile if it is not YAML, or beyond the limits."""
    try:
        return Document(text, file)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        fix = "indent with spaces, not tabs" if "\t" in text else ""
        line = mark.line + 1 if mark else None
        raise BadFile(file, f"is not YAML: {what}", fix, line) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadFile(file, f"is not YAML: {error}") from error


def plain_value(text: str) -> Any:
    """The value of a scalar without quotes."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    return text


def validate(document: Document, model: type[Model]) -> tuple[Model | None, list[Problem]]:
    """The document as ``model``, or ``None`` and all problems, in pydantic's words."""
    try:
        return cast(Model, _entry(document, model)), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    # A value that may have several types has an error for each; they become one problem.
    expected: dict[Location, list[str]] = {}
    first: dict[Location, ErrorDetails] = {}
    for detail in details:
        location: Location = detail["loc"]
        # Without what pydantic adds to it, such as the member of a union.
        while location and detail["type"] != "missing" and location not in document.lines:
            location = location[:-1]
        first.setdefault(location, detail)
        expected.setdefault(location, []).append(detail["msg"])
    problems = []
    for location, detail in first.items():
        messages = dict.fromkeys(message.removeprefix("Input ") for message in expected[location])
        detail["msg"] = " or ".join(messages)
        problems.append(problem_at(document, location, *explain(detail, model)))
    # A misspelt key is also a missing key; its own line helps more, so it comes first.
    return None, sorted(problems, key=lambda p: (p.message == _MISSING, p.line or 0))


@lru_cache(maxsize=64)
def _entry(document: Document, model: type[BaseModel]) -> BaseModel:
    return model.model_validate_json(json.dumps(document.data))


def problem_at(document: Document, location: Location, message: str, fix: str) -> Problem:
    """A problem with its file, line and key."""
    return Problem(document.file, document.line(location), dotted(location), message, fix)


_MISSING = "missing key"


def explain(detail: ErrorDetails, model: type[BaseModel]) -> tuple[str, str]:
    """The message and the fix of pydantic's error in a document of ``model``."""
    location = detail["loc"]
    if detail["type"] == "missing":
        return _MISSING, "add the key"
    if detail["type"] == "value_error":  # a rule over several keys
        return str(detail["ctx"]["error"]), "correct the values"
    if detail["type"] == "extra_forbidden":
        for step in location[:-1]:
            if field := model.model_fields.get(str(step)):
                model = _model_in(field.annotation) or model
        keys = list(model.model_fields)
        listed = f"keys: {', '.join(keys)}" if len(keys) < 10 else ""
        return "unknown key", nearest(str(location[-1]), keys) or listed
    expected = detail["msg"].removeprefix("Input ")
    return f"{expected}, and is {json.dumps(detail['input'], default=str)[:60]}", ""


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """pydantic's first error about a document of ``model``, with the key as in the file."""
    detail = error.errors(include_url=False)[0]
    message, fix = explain(detail, model)
    key, hint = dotted(detail["loc"]), f"; {fix}" if fix.startswith("did you mean") else ""
    return f"{key}: {message}{hint}" if key else message


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside ``Thing``, ``Thing | None``, ``tuple[Thing, ...]`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
