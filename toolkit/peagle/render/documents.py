"""Reads the toolkit's own JSON documents, which an editor or a full disk may have changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from peagle.catalog.documents import dotted
from peagle.errors import Fix, PeagleError, nearest
from peagle_serve import json_reader
from peagle_serve.json_reader import InvalidJson


def read_document(path: Path, kind: type[PeagleError], create: Sequence[str], again: Fix) -> Any:
    """The JSON in the file ``path``. Raises ``kind``: with the command ``create`` for a missing
    file, whose name completes it, and with ``again`` for one that is empty, truncated or not
    JSON."""
    try:
        if path.is_fifo() and path.parent.name != "fd":  # one of <(jq ...) has a writer
            raise kind(f"{path} is a named pipe, not a file", "write the document to a file")
        with path.open("rb") as stream:
            text = stream.read(json_reader.DEFAULT.size + 1).decode("utf-8")
    except FileNotFoundError:
        fix = Fix("create it", (*create, json_name(str(path))))
        raise kind(f"there is no file {path}", fix) from None
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise kind(f"{path} is not UTF-8", again) from error
    if not text.strip():
        raise kind(f"{path} is empty", again)
    try:
        return json_reader.read(text, str(path))
    except InvalidJson as error:
        raise kind(str(error), again) from error


def json_name(file: str) -> str:
    """The file, with the suffix by which commands recognize a plan or a verdict."""
    return file if file.endswith(".json") else f"{file}.json"


def first_problem(error: ValidationError, model: type[BaseModel]) -> str:
    """pydantic's first error about a document of ``model``, with the key as in the file."""
    detail = error.errors(include_url=False)[0]
    key = dotted(detail["loc"])
    if detail["type"] == "missing":
        return f"the key {key!r} is missing"
    if detail["type"] == "extra_forbidden":
        keys = list(model.model_fields) if len(detail["loc"]) == 1 else []
        name = model.__name__.lower()
        return f"there is no key {key!r} in a {name}; {nearest(key, keys)}".rstrip("; ")
    message = detail["msg"].removeprefix("Value error, ")
    return f"{key}: {message}" if key else message
