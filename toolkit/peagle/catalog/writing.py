"""Writes changed tables back into their YAML files: comments, order and anchors stay.

ruamel.yaml reads a file with its comments, the entries that changed are changed in that document,
and the document is written again. A line is never folded, so only lines that changed differ.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from peagle.catalog.documents import display_path
from peagle.catalog.loading import table_file, validate_file
from peagle.catalog.tables import InstanceTable, RuntimeTable
from peagle.errors import UserError
from peagle.store import replacing

_NAMED_BY = {"amis": "name", "instances": "type", "prices": "region", "runtimes": "vllm"}
"""Lists of entries -> the key that identifies an entry."""

NUMBER_LIKE = re.compile(r"[\d._]+")
"""Text that needs quotes, because a YAML reader may take it for a number."""

_NEVER_FOLD = 1 << 16


@dataclass(frozen=True)
class Tables:
    """The two tables that a refresh writes."""

    runtimes: RuntimeTable
    instances: InstanceTable


_NOT_IN_PLACE = "this file cannot be changed in place"
_ELSEWHERE = "write to another folder with --to DIR"


def rewritten(text: str, before: BaseModel, after: BaseModel) -> str:
    """``text``, a YAML file that holds ``before``, changed so that it holds ``after``.

    Raises UserError for text that ruamel.yaml, unlike PyYAML, does not read.
    """
    from ruamel.yaml.error import YAMLError

    if before == after:
        return text
    round_trip = _round_trip()
    try:
        document = round_trip.load(text)
    except YAMLError as error:
        raise UserError(
            f"{_NOT_IN_PLACE}: {str(error).splitlines()[0]}", _ELSEWHERE, code="not-in-place"
        ) from error
    _Update(document, text).mapping(document, _data(before), _data(after))
    output = io.StringIO()
    round_trip.dump(document, output)
    return output.getvalue()


def _round_trip() -> Any:
    """Loads ruamel.yaml, which only a refresh needs."""
    from ruamel.yaml import YAML

    round_trip = YAML()
    round_trip.preserve_quotes = True
    round_trip.width = _NEVER_FOLD
    round_trip.indent(mapping=2, sequence=4, offset=2)
    return round_trip


def _data(entry: BaseModel) -> dict[str, Any]:
    """The entry as data, without keys that have their default value."""
    return entry.model_dump(exclude_defaults=True)


class _Update:
    """Changes a ruamel document in place. Equal lists of text are written once, with an anchor."""

    def __init__(self, document: Any, text: str) -> None:
        from ruamel.yaml.comments import CommentedMap, CommentedSeq
        from ruamel.yaml.scalarstring import DoubleQuotedScalarString

        self._new_mapping, self._new_list = CommentedMap, CommentedSeq
        self._quoted = DoubleQuotedScalarString
        tokens = yaml.scan(text)
        self._anchors = {token.value for token in tokens if isinstance(token, yaml.AnchorToken)}
        self._lists: dict[tuple[str, ...], Any] = {}
        self._remember_lists(document)

    def mapping(self, node: Any, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Make the mapping ``node``, which holds ``old``, hold ``new``."""
        for key in [key for key in old if key not in new]:
            node.pop(key, None)
        before = None
        for key, value in new.items():
            was = old.get(key)
            if value != was:
                if key in _NAMED_BY:
                    self._entries(node, key, was or (), value, before)
                elif isinstance(value, dict):
                    if key not in node:
                        self._put(node, key, self._new_mapping(), before)
                    self.mapping(node[key], was or {}, value)
                else:
                    self._put(node, key, self._node(value), before)
            before = key

    def _entries(
        self, holder: Any, key: str, old: Sequence[Any], new: Sequence[Any], before: str | None
    ) -> None:
        """Make the list under ``key`` hold the entries ``new``, in their order."""
        name = _NAMED_BY[key]
        if key not in holder:
            self._put(holder, key, self._new_list(), before)
        node = holder[key]
        known = {entry[name]: entry for entry in old}
        names = {entry[name] for entry in new}
        for number in reversed(range(len(node))):
            if str(node[number][name]) not in names:
                del node[number]
        for number, entry in enumerate(new):
            if entry[name] in known:
                self.mapping(node[number], known[entry[name]], entry)
            else:
                made = self._new_mapping()
                if key == "prices":
                    made.fa.set_flow_style()
                node.insert(number, made)
                self.mapping(made, {}, entry)

    def _put(self, node: Any, key: str, value: Any, before: str | None) -> None:
        """Set ``key``; a new one comes after ``before``, or before it if a comment follows it."""
        if key in node:
            node[key] = value
            return
        keys = list(node)
        comment = node.ca.items.get(before)
        is_followed = comment and comment[2] is not None and comment[2].value.startswith("\n")
        position = keys.index(before) + (not is_followed) if before in keys else 0
        node.insert(position, key, value)

    def _node(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._quoted(value) if NUMBER_LIKE.fullmatch(value) else value
        if not isinstance(value, tuple):
            return value
        if value not in self._lists:
            self._lists[value] = self._new_list(value)
        elif self._lists[value].anchor.value is None:
            names = (f"list_{number}" for number in count(len(self._anchors) + 1))
            anchor = next(name for name in names if name not in self._anchors)
            self._anchors.add(anchor)
            self._lists[value].yaml_set_anchor(anchor)
        return self._lists[value]

    def _remember_lists(self, node: Any) -> None:
        """Know all lists of text in the document, so that an equal one becomes an alias."""
        if isinstance(node, self._new_mapping):
            node = list(node.values())
        elif isinstance(node, self._new_list) and node and all(isinstance(e, str) for e in node):
            self._lists.setdefault(tuple(node), node)
        if isinstance(node, list):
            for each in node:
                self._remember_lists(each)


def new_texts(folder: Path, before: Tables, after: Tables) -> dict[str, str]:
    """The files of the catalogue ``folder`` that change: name -> new text.

    ``before`` is what was loaded with ``folder`` as the user's own catalogue. Raises UserError for
    a file that cannot be changed so that it holds ``after``.
    """
    texts: dict[str, str] = {}
    for name, old, new in (
        ("runtimes.yaml", before.runtimes, after.runtimes),
        ("instances.yaml", before.instances, after.instances),
    ):
        if old != new:
            texts[name] = _changed(name, folder, old, new)
    return texts


def _changed(name: str, folder: Path, old: BaseModel, new: BaseModel) -> str:
    text = rewritten(table_file(name, folder).read_text(encoding="utf-8"), old, new)
    if validate_file(Path(name), type(new), text) != (new, []):
        raise UserError(
            f"{display_path(folder / name)}: {_NOT_IN_PLACE}", _ELSEWHERE, code="not-in-place"
        )
    return text


def refuse_unwritable(folder: Path) -> None:
    """Raise UserError if tables cannot be written to ``folder``, which need not exist yet."""
    try:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    except OSError as error:
        raise _unwritable(folder, error) from error
    if not existing.is_dir():
        raise UserError(
            f"{existing} is not a folder", "specify a folder with --to", code="output-not-a-folder"
        )
    if not os.access(existing, os.W_OK):
        raise UserError(
            f"the catalogue in {display_path(folder)} cannot be written",
            "write to a folder of your own with --to DIR, and specify it with --catalog",
            code="not-writable",
        )


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Write the files ``texts`` (name -> text), so that a reader sees the old or the new ones.

    Returns their paths. Raises UserError if the folder or a file in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as files:  # the files are replaced once all of them are complete on disk
            for name, text in texts.items():
                temporary = files.enter_context(replacing(folder / name))
                temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from error
    return [folder / name for name in texts]


def _unwritable(folder: Path, error: OSError) -> UserError:
    message = f"the catalogue in {display_path(folder)} cannot be written: {error.strerror}"
    return UserError(message, "specify another folder with --to DIR", code="not-writable")
