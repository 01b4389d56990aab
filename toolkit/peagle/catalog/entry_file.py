"""Renders a new target's file: an entry of the catalogue as YAML, with a comment on every value
that could not be known."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle.catalog.documents import Location, plain_value
from peagle.catalog.loading import validate_file
from peagle.catalog.schema import Target
from peagle.errors import UserError
from peagle.text import sanitize

UNKNOWN = "unknown: "
"""The beginning of a comment on a value that could not be known."""

_PLAIN = re.compile(r"[A-Za-z](?:[\w .,/@+()'\-]*[\w.,/@+()'\-])?", re.ASCII)
"""Text that needs no quotes."""

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
    data = target.model_dump(mode="json", exclude_defaults=True)
    text = "".join(f"{line}\n" for line in _mapping(data, (), unknown, missing))
    written, problems = validate_file(file, Target, text)
    if problems:
        raise UserError(problems[0].text, problems[0].fix, code="invalid-entry")
    if written != target:
        raise UserError(
            f"{target.id} has text that YAML cannot hold", "use another name", code="invalid-entry"
        )
    return text


def _mapping(
    data: Mapping[str, Any],
    at: Location,
    unknown: Mapping[Location, str],
    missing: Mapping[Location, str],
) -> Iterator[str]:
    """The lines of the mapping at ``at``."""
    for key, value in data.items():
        if key == "source":
            absent = {where: f"{where[-1]}, {why}" for where, why in unknown.items()
                      if where[-1] not in data}  # fmt: skip
            for where, why in {**absent, **missing}.items():
                if where[:-1] == at:
                    yield _comment(why)
        where = (*at, key)
        comment = f" {_comment(unknown[where])}" if where in unknown else ""
        if isinstance(value, dict) and value:
            yield f"{key}:{comment}"
            yield from (f"  {line}" for line in _mapping(value, where, unknown, missing))
        elif isinstance(value, list) and value:
            yield f"{key}:{comment}"
            for number, item in enumerate(value):
                lines = [_scalar(item)]
                if isinstance(item, dict) and key != "attention":  # whose entries take a line each
                    lines = list(_mapping(item, (*where, number), unknown, missing))
                yield from (f"  {' ' if i else '-'} {line}" for i, line in enumerate(lines))
        else:
            yield f"{key}: {_scalar(value)}{comment}"


def _scalar(value: Any) -> str:
    """The value in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_scalar(each)}' for key, each in value.items())}}}"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and plain_value(value) == value:
        return value
    if type(value) is int and value >= _GROUPED:
        return f"{value:_}"
    return json.dumps(value)


def _comment(why: str) -> str:
    return f"# {sanitize(f'{UNKNOWN}{why}')}"
