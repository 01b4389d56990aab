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
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from peagle.data import data_folder
from peagle.errors import CatalogError, Fix
from peagle_serve.regular_files import read_regular

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


_BASES: tuple[Any, ...] = (
    (Composer, yaml.CBaseLoader) if hasattr(yaml, "CBaseLoader") else (yaml.BaseLoader,)
)
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


class _Loader(*_BASES):  # type: ignore[misc]
    """Composes nodes within the limits, from what libyaml parses. libyaml's own composer recurses
    until the process ends. Resolves no tags, which takes a third of YAML's time: ``plain_value``
    types the scalars."""

    get_single_node = Composer.get_single_node

    def __init__(self, text: str, file: str) -> None:
        _BASES[-1].__init__(self, text)
        self.anchors: dict[str, yaml.Node] = {}
        self._file = file
        self._depth = self._values = 0
        self._behind: dict[str, int] = {}
        """The number of values that each anchor stands for, once its node is complete."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event, before = self.peek_event(), self._values
        line = event.start_mark.line + 1
        self._depth += 1
        if self._depth > DEEPEST:
            message = f"is nested more than {DEEPEST} deep"
            raise BadFile(self._file, message, "write it with fewer levels", line)
        node: yaml.Node = Composer.compose_node(self, parent, index)  # type: ignore[assignment]
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
        elif event.anchor in self._behind:
            self._values += self._behind[event.anchor]
        else:
            line = node.start_mark.line + 1
            raise BadFile(self._file, "refers to itself", "remove the alias", line)
        if event.anchor is not None:
            self._behind[event.anchor] = self._values - before
        if self._values > MOST_VALUES:
            message = f"has more than {MOST_VALUES:,} values, those behind aliases included"
            raise BadFile(self._file, message, "use fewer aliases, or split the file", line)
        return node

    def resolve(self, *_: object) -> str:
        return ""

    def descend_resolver(self, *_: object) -> None:
        pass

    def ascend_resolver(self, *_: object) -> None:
        pass


class Document:
    """One file's data, with the text and line of every value for error messages."""

    def __init__(self, file: str, root: yaml.Node | None) -> None:
        self.file = file
        self._root = root
        self.data = _Conversion(file).value(root) if root is not None else None

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
        raise BadFile(file, f"is not UTF-8 (byte {error.start})", "save it as UTF-8") from error


@lru_cache(maxsize=64)  # a process that loads the catalogue again parses only what has changed
def parse_document(text: str, file: str) -> Document:
    """The YAML ``text`` of ``file``; raises BadFile if it is not YAML, or beyond the limits."""
    try:
        return Document(file, _Loader(text, file).get_single_node())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise BadFile(file, f"is not YAML: {what}", line=mark.line + 1 if mark else None) from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadFile(file, f"is not YAML: {error}") from error


class _Conversion:
    """Converts YAML nodes to plain data; a node that is used twice (an alias), once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._done: dict[int, Any] = {}

    def value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            is_plain = not node.style  # quoted text and blocks are text
            return plain_value(node.value) if is_plain else node.value
        identity = id(node)
        if identity not in self._done:
            self._done[identity] = (
                [self.value(item) for item in node.value]
                if isinstance(node, yaml.SequenceNode)
                else self._mapping(node)
            )
        return self._done[identity]

    def _mapping(self, node: yaml.Node) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse(key_node, "", "a key must be plain text", "write `name: value`")
            if key in mapping:
                self._refuse(key_node, key, "duplicate key", "keep one of the two")
            mapping[key] = self.value(value_node)
        return mapping

    def _refuse(self, node: yaml.Node, key: str, message: str, fix: str) -> None:
        raise BadFile(self._file, message, fix, node.start_mark.line + 1, key)


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
