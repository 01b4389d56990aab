"""Reads one YAML file into plain data, with the line of every value.

Of YAML's scalars only ``true``, ``false``, ``null``, whole numbers (``13_761_264_768`` too) and
decimal fractions have a type; everything else is text. So ``no`` is text, a date is text, and a
version such as ``0.20`` without quotes is a number, which the catalogue's models reject with a
hint to quote it. There are no merge keys and no tags, and a duplicate key is an error.

This is the toolkit's only YAML reader. Size, depth and number of values are limited: a file of 288
bytes can stand for a billion values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from peagle.data import data_folder
from peagle.errors import CatalogError, Fix
from peagle_serve.json_reader import read_regular

Location = tuple[str | int, ...]


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


@dataclass(frozen=True)
class Problem:
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


class BadFile(Exception):
    """A file that cannot be read as data; the catalogue turns it into a Problem or CatalogError."""

    def __init__(
        self, file: str, message: str, fix: str = "", line: int | None = None, key: str = ""
    ) -> None:
        self.problem = Problem(file, line, key, message, fix)
        super().__init__(self.problem.text)


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


class Document:
    """One file's data, with the line of every value for error messages."""

    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self._refuse_large(text)
        self._root: yaml.Node | None = yaml.compose(text, _LOADER)
        self._shared: dict[int, Any] = {}  # what aliases stand for, by the id of its node
        self.data = None if self._root is None else self._value(self._root)

    def _refuse_large(self, text: str) -> None:
        """Raise BadFile for text beyond the limits. An alias counts as all that it stands for, and
        the composer would recurse until the process ends."""
        values, depth = 0, 0
        anchors: dict[str, int | None] = {}  # values of an anchor; None: it is not complete
        open_anchors: list[tuple[str | None, int]] = []
        for event in yaml.parse(text, _LOADER):
            if isinstance(event, yaml.ScalarEvent):
                values += 1
                if event.anchor is not None:
                    anchors[event.anchor] = 1
            elif isinstance(event, yaml.AliasEvent):
                of_alias = anchors.get(str(event.anchor), 0)
                if of_alias is None:
                    raise self._bad("refers to itself", "remove the alias", event)
                values += of_alias
            elif isinstance(event, yaml.CollectionStartEvent):
                depth += 1
                open_anchors.append((event.anchor, values))
                values += 1
                anchors[str(event.anchor)] = None
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
                anchor, before = open_anchors.pop()
                anchors[str(anchor)] = values - before
            if depth > DEEPEST:
                message, fix = f"is nested more than {DEEPEST} deep", "write it with fewer levels"
                raise self._bad(message, fix, event)
            if values > MOST_VALUES:
                message = f"has more than {MOST_VALUES:,} values, those behind aliases included"
                raise self._bad(message, "use fewer aliases, or split the file", event)

    def _value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return node.value if node.style else plain_value(node.value)  # quoted text is text
        if id(node) not in self._shared:
            is_list = isinstance(node, yaml.SequenceNode)
            self._shared[id(node)] = [self._value(child) for child in node.value] if is_list else {}
            for key, value in () if is_list else node.value:
                mapping = self._shared[id(node)]
                if not isinstance(key, yaml.ScalarNode):
                    raise self._bad("a key must be plain text", "write `name: value`", key)
                if key.value in mapping:
                    raise self._bad("duplicate key", "keep one of the two", key, key.value)
                mapping[key.value] = self._value(value)
        return self._shared[id(node)]

    def _bad(self, message: str, fix: str, at: yaml.Event | yaml.Node, key: str = "") -> BadFile:
        mark: Any = at.start_mark
        return BadFile(self.file, message, fix, mark.line + 1, key)

    def line(self, location: Location) -> int | None:
        """The line of the value at ``location``, or of the nearest one around it."""
        node, steps = self._root, iter(location)
        while (child := _child(node, next(steps, None))) is not None:
            node = child
        return None if node is None else int(node.start_mark.line) + 1

    def node(self, location: Location) -> yaml.Node | None:
        """The node at ``location``; ``None`` if there is none."""
        node = self._root
        for step in location:
            node = _child(node, step)
        return node

    def source(self, location: Location) -> str | None:
        """A scalar as text of the file, without its quotes."""
        node = self.node(location)
        return str(node.value) if isinstance(node, yaml.ScalarNode) else None


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
        raise BadFile(file, f"is not YAML: {what}", line=mark.line + 1 if mark else None) from error
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


def _child(node: yaml.Node | None, step: str | int | None) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        return next(iter(node.value[step : step + 1]), None)
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    return None
