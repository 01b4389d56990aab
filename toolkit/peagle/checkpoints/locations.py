"""How locations of weights are written: ``s3://...``, a folder, or a Hugging Face id."""

from __future__ import annotations

import re
from pathlib import Path

from peagle.s3uri import is_s3_uri

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*(@[\w.\-/]+)?", re.ASCII)
_FOLDER = re.compile(r"[/~.]")


def is_location(text: str) -> bool:
    """Whether the text is a location of weights and not the name of a drafter."""
    return is_s3_uri(text) or is_folder(text) or is_hub_id(text)


def is_folder(text: str) -> bool:
    """Whether the text is written as a folder: ``/...``, ``./...``, ``../...`` or ``~/...``."""
    return _FOLDER.match(text) is not None


def is_hub_id(text: str) -> bool:
    """Whether the text is a Hugging Face id, ``org/name`` or ``org/name@revision``."""
    return _HUB_ID.fullmatch(text) is not None


def split_revision(location: str) -> tuple[str, str | None]:
    """A Hugging Face id and the revision after its ``@``; other locations have none."""
    name, _, revision = location.partition("@")
    return (name, revision) if revision and is_hub_id(location) else (location, None)


def means_folder(location: str) -> bool:
    """Whether this is a folder: written as one, or like a hub id where such a folder exists."""
    if is_s3_uri(location):
        return False
    return is_folder(location) or ("/" in location and Path(location).expanduser().is_dir())


def folder_hint(word: str) -> str:
    """How to write a word that is also the name of a folder here; empty where none is."""
    is_there = bool(word) and "/" not in word and Path(word).is_dir()
    return f"there is a folder ./{word}: write ./{word}" if is_there else ""
