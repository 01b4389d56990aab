"""Writes a new target's file: an entry of the catalogue as YAML, with a comment on every value that
could not be known."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peagle.catalog.documents import Location, plain_value
from peagle.catalog.loading import validate_file
from peagle.catalog.schema import Target
from peagle.catalog.writing import NUMBER_LIKE
from peagle.errors import UserError
from peagle.text import sanitize

UNKNOWN = "unknown: "
"""The beginning of a comment on a value that could not be known."""

_NEVER_FOLD = 1 << 16
_FLOW = frozenset({"attention"})
"""Lists whose entries take one line each."""

_GROUPED = 1_000_000
"""Whole numbers from here on are written with underscores."""


def entry_text(
    target: Target, unknown: Mapping[Location, str], missing: Mapping[Location, str], file: Path
) -> str:
    """The file of ``target`` at ``file``, which is not written.

    ``unknown`` says of values why they are not known; ``missing`` of keys that are left out. Such
    comments, and those on values that are left out as defaults, are before the key ``source``.
    Raises UserError for an entry that the catalogue would not load from that file.
    """
    from ruamel.yaml import YAML

    round_trip = YAML()
    round_trip.width = _NEVER_FOLD
    round_trip.indent(mapping=2, sequence=4, offset=2)
    data = target.model_dump(mode="json", exclude_defaults=True)
    output = io.StringIO()
    round_trip.dump(_Writer(unknown, missing).mapping(data, ()), output)
    text = output.getvalue()
    written, problems = validate_file(file, Target, text)
    if problems:
        raise UserError(problems[0].text, problems[0].fix, code="invalid-entry")
    if written != target:
        raise UserError(
            f"{target.id} has text that YAML cannot hold", "use another name", code="invalid-entry"
        )
    return text


class _Writer:
    """Makes ruamel's nodes of plain data, with the comments."""

    def __init__(self, unknown: Mapping[Location, str], missing: Mapping[Location, str]) -> None:
        from ruamel.yaml.comments import CommentedMap, CommentedSeq
        from ruamel.yaml.scalarint import ScalarInt
        from ruamel.yaml.scalarstring import DoubleQuotedScalarString

        self._mapping, self._list = CommentedMap, CommentedSeq
        self._quoted, self._integer = DoubleQuotedScalarString, ScalarInt
        self._unknown, self._missing = unknown, missing

    def mapping(self, data: Mapping[str, Any], at: Location) -> Any:
        """The mapping at ``at``; in one line below a list that has one line per entry."""
        node = self._mapping()
        for key, value in data.items():
            where = (*at, key)
            node[key] = self._node(value, where)
            if where in self._unknown:
                node.yaml_add_eol_comment(_comment(self._unknown[where]), key, column=0)
        absent = {where: f"{where[-1]}, {why}" for where, why in self._unknown.items()
                  if where[-1] not in data}  # fmt: skip
        missing = {**absent, **self._missing}
        before = [_comment(why) for where, why in missing.items() if where[:-1] == at]
        if before and "source" in node:
            indent = 2 * len(at)
            node.yaml_set_comment_before_after_key("source", "\n".join(before), indent)
        if len(at) > 1 and at[-2] in _FLOW:
            node.fa.set_flow_style()
        return node

    def _node(self, value: Any, at: Location) -> Any:
        if isinstance(value, dict):
            return self.mapping(value, at)
        if isinstance(value, list):
            return self._list([self._node(one, (*at, number)) for number, one in enumerate(value)])
        if isinstance(value, str):
            is_number = NUMBER_LIKE.fullmatch(value) or plain_value(value) != value
            return self._quoted(value) if is_number or not value.isprintable() else value
        if type(value) is int and value >= _GROUPED:
            return self._integer(value, underscore=[3, False, False])
        return value


def _comment(why: str) -> str:
    return sanitize(f"{UNKNOWN}{why}")
