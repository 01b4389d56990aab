"""Reads one YAML file into plain data, with the line of every value.

Of YAML's scalars only ``true``, ``false``, ``null``, whole numbers (``13_761_264_768`` too) and
decimal fractions have a type; everything else is text. So ``no`` is text, a date is text, and a
version such as ``0.20`` without quotes is a number, which the catalogue's models reject with a
hint to quote it. There are no merge keys and no tags, and a duplicate key is an error.

This is the toolkit's only YAML reader. Size, depth and number of values are limited, and an alias
counts as all that it stands for: a file of 288 bytes can stand for a billion values.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml

from peagle.data import data_folder
from peagle.errors import CatalogError, Fix
from peagle_serve.json_reader import read_regular

Location = tuple[str | int, ...]


def folders(own: Path | None) -> list[Path]:
    """The folders that make up the catalogue; a later one takes precedence."""
    bundled = data_folder("model_catalog")
    if own is None or own.resolve() == bundled.resolve():
        return [bundled]
    return [bundled, own]


def evidence_files(own: Path | None) -> list[Path]:
    """The JSON files that may hold evidence."""
    return [path for folder in folders(own) for path in sorted(folder.glob("evidence/*.json"))]


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


class _Builder:
    """Builds plain data within the limits from the events of libyaml's parser, in one pass.

    libyaml's own composer recurses until the process ends, and a tree of nodes takes longer than
    the data. Tags are ignored: ``plain_value`` types the scalars.
    """

    def __init__(self, text: str, file: str) -> None:
        self._next_event = _LOADER(text).get_event
        self._file = file
        self._values = 0
        self._anchors: dict[str, _Anchor] = {}

    def document(self) -> Any:
        """The data of the only document; ``None`` for an empty file."""
        self._next_event()  # the start of the stream
        first = self._next_event()
        if isinstance(first, yaml.StreamEndEvent):
            return None
        data = self._value(self._next_event(), 1)
        self._next_event()  # the end of the document
        after = self._next_event()
        if not isinstance(after, yaml.StreamEndEvent):
            message = "is not YAML: expected a single document in the stream"
            raise self._bad(message, "keep one document in a file", after)
        return data

    def _value(self, event: yaml.NodeEvent, depth: int) -> Any:
        """The value that begins with this event."""
        if isinstance(event, yaml.AliasEvent):
            return self._anchor_of(event).value
        if depth > DEEPEST:
            message = f"is nested more than {DEEPEST} deep"
            raise self._bad(message, "write it with fewer levels", event)
        anchor, before = self._begin(event), self._values
        value: Any
        if isinstance(event, yaml.ScalarEvent):
            is_plain = not event.style  # quoted text and blocks are text
            value = plain_value(event.value) if is_plain else event.value
        elif isinstance(event, yaml.SequenceStartEvent):
            value = []
            while not isinstance(item := self._next_event(), yaml.SequenceEndEvent):
                value.append(self._value(item, depth + 1))
        else:
            value = self._mapping(depth + 1)
        self._count(1, event)
        if anchor is not None:
            anchor.value, anchor.values = value, self._values - before
        return value

    def _mapping(self, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        while not isinstance(event := self._next_event(), yaml.MappingEndEvent):
            key = self._key(event, depth)
            value = self._value(self._next_event(), depth)
            if key in mapping:
                raise self._bad("duplicate key", "keep one of the two", event, key)
            mapping[key] = value
        return mapping

    def _key(self, event: yaml.NodeEvent, depth: int) -> str:
        if isinstance(event, yaml.ScalarEvent) and event.anchor is None:
            self._count(1, event)
            return str(event.value)
        self._value(event, depth)
        text = self._anchors[event.anchor].text if event.anchor is not None else None
        if text is None:
            raise self._bad("a key must be plain text", "write `name: value`", event)
        return text

    def _begin(self, event: yaml.NodeEvent) -> _Anchor | None:
        """The event's anchor, whose value is not known yet."""
        if event.anchor is None:
            return None
        if event.anchor in self._anchors:
            raise self._bad(
                f"is not YAML: found duplicate anchor {event.anchor!r}",
                "give each anchor its own name",
                event,
            )
        text = event.value if isinstance(event, yaml.ScalarEvent) else None
        anchor = self._anchors[event.anchor] = _Anchor(_line(event), text)
        return anchor

    def _anchor_of(self, alias: yaml.AliasEvent) -> _Anchor:
        """What the alias stands for, which counts as often as it is used."""
        anchor = self._anchors.get(str(alias.anchor))
        if anchor is None:
            raise self._bad(
                f"is not YAML: found undefined alias {alias.anchor!r}",
                "define the anchor before it, or write the value",
                alias,
            )
        if anchor.values is None:
            raise BadFile(self._file, "refers to itself", "remove the alias", anchor.line)
        self._count(anchor.values, alias)
        return anchor

    def _count(self, values: int, event: yaml.Event) -> None:
        self._values += values
        if self._values > MOST_VALUES:
            message = f"has more than {MOST_VALUES:,} values, those behind aliases included"
            raise self._bad(message, "use fewer aliases, or split the file", event)

    def _bad(self, message: str, fix: str, event: yaml.Event, key: str = "") -> BadFile:
        return BadFile(self._file, message, fix, _line(event), key)


def _line(event: yaml.Event) -> int:
    mark: Any = event.start_mark
    return int(mark.line) + 1


@dataclass
class _Anchor:
    """The line of an anchor, the text of its scalar, its value, and the number of values that it
    stands for: ``None`` until it is complete."""

    line: int
    text: str | None
    value: Any = None
    values: int | None = None


class Document:
    """One file's data, with the text and line of every value for error messages."""

    def __init__(self, text: str, file: str) -> None:
        self.file, self._text = file, text
        self.data = _Builder(text, file).document()

    @cached_property
    def _root(self) -> yaml.Node | None:
        """The tree of nodes: they have the lines, which only messages need."""
        root: yaml.Node | None = yaml.compose(self._text, _LOADER)
        return root

    def node(self, location: Location) -> yaml.Node | None:
        """The node at ``location``; ``None`` if there is none."""
        node = self._root
        for step in location:
            node = _child(node, step)
        return node

    def line(self, location: Location) -> int | None:
        """The line of the value at ``location``, or of the nearest one around it."""
        for length in range(len(location), -1, -1):
            node = self.node(location[:length])
            if node is not None:
                return int(node.start_mark.line) + 1
        return None

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


def _child(node: yaml.Node | None, step: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int):
        items: Sequence[yaml.Node] = node.value
        return items[step] if step < len(items) else None
    if isinstance(node, yaml.MappingNode) and isinstance(step, str):
        for key_node, value_node in node.value:
            if key_node.value == step:
                found: yaml.Node = value_node
                return found
    return None
