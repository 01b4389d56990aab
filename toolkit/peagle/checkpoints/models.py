"""One checkpoint as it was read, the protocol of its source, and how its location is written:
``s3://...``, a folder, or a Hugging Face id."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from peagle.errors import CheckpointError, Fix
from peagle.s3uri import PREFIX_FORMAT, S3Uri
from peagle_serve.checkpoint import Tensor as Tensor
from peagle_serve.contract import HUB_ID, is_s3_uri


@dataclass(frozen=True)
class Tokenizer:
    """Facts of a tokenizer's small files: ``special_tokens`` is the text by id, ``roles`` the text
    of ``eos``, ``pad`` and ``unk``, ``generation`` generation_config.json. ``vocab_size`` is
    ``None`` where it is unknown."""

    vocab_size: int | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)
    has_chat_template: bool = False

    def differs_from(self, other: Tokenizer) -> bool:
        """Whether a token id has two meanings, or the vocabularies have different sizes."""
        ours, theirs = self.special_tokens, other.special_tokens
        if any(ours[number] != theirs[number] for number in ours.keys() & theirs):
            return True
        sizes = {self.vocab_size, other.vocab_size} - {None}
        return len(sizes) > 1


@dataclass(frozen=True)
class Checkpoint:
    """config.json and the safetensors headers of one location.

    ``tensors`` is ``None`` if no header was read (a folder with a config.json only).
    ``other_weights`` are weight files in other formats, which are not read. ``tokenizer`` is
    ``None`` if there is none. ``bytes_read`` counts all files, without listings.
    ``takes_media``: the files include a processor for images, audio or video, without which vLLM
    serves text only. ``pair`` is the catalogue's pair, in full, of which the head is a copy; empty
    where that is unknown.
    """

    location: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    tokenizer: Tokenizer | None = None
    bytes_read: int = 0
    other_weights: tuple[str, ...] = ()
    takes_media: bool = True
    pair: str = ""


def reserved_tokens(checkpoint: Checkpoint) -> dict[str, set[int]]:
    """The ids of the model's tokens for ``eos``, ``pad`` and ``unk``: by its config.json,
    generation_config.json and tokenizer, as far as these were read."""
    text, tokenizer = checkpoint.config.get("text_config"), checkpoint.tokenizer or Tokenizer()
    holders = checkpoint.config, text if isinstance(text, Mapping) else {}, tokenizer.generation
    reserved: dict[str, set[int]] = {}
    for role in ("eos", "pad", "unk"):
        values = [holder.get(f"{role}_token_id") for holder in holders]
        ids = [n for value in values for n in (value if isinstance(value, list) else [value])]
        named = tokenizer.special_tokens.items()
        ids += [int(n) for n, text in named if n.isdecimal() and text == tokenizer.roles.get(role)]
        reserved[role] = {number for number in ids if type(number) is int}
    return reserved


class Source(Protocol):
    """A folder, an S3 prefix or a repository of the Hub.

    Every method raises PeagleErrors only. Files below the top level are ignored: vLLM reads no
    weights there.
    """

    @property
    def location(self) -> str:
        """The location as the user names it, without a slash at its end."""

    def names(self) -> Mapping[str, int]:
        """The files at the top level, each with its size in bytes."""

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """``length`` bytes of the file from ``start``, fewer at its end; all by default.

        Nothing else of the file is transferred.
        """

    def digests(self, name: str) -> Mapping[str, str]:
        """Digests of the file that the source lists: ``sha256`` or ``git`` (a git blob id) to
        hexadecimal digits. Empty if none is known, or before the first call of ``names``."""


_REVISION = re.compile(r"[\w.\-/]+", re.ASCII)
_FOLDER = re.compile(r"[/~.]")
_SNAPSHOT = re.compile(r"/models--([\w.\-]+?)--([\w.\-]+)/snapshots/([0-9a-f]{40})$", re.ASCII)


ReadCheckpoint = Callable[[str], Checkpoint]
"""Reads the checkpoint at a location."""


def is_location(text: str) -> bool:
    """Whether the text is a location of weights and not the name of a drafter."""
    return is_s3_uri(text) or is_folder(text) or is_hub_id(text)


def is_folder(text: str) -> bool:
    """Whether the text is written as a folder: ``/...``, ``./...``, ``../...`` or ``~/...``."""
    return _FOLDER.match(text) is not None


def is_hub_id(text: str) -> bool:
    """Whether the text is a Hugging Face id, ``org/name`` or ``org/name@revision``."""
    name, at, revision = text.partition("@")
    return bool(HUB_ID.fullmatch(name) and (not at or _REVISION.fullmatch(revision)))


def split_revision(location: str) -> tuple[str, str | None]:
    """A Hugging Face id and the revision after its ``@``; other locations have none."""
    name, _, revision = location.partition("@")
    return (name, revision) if revision and is_hub_id(location) else (location, None)


def hub_snapshot(folder: str) -> str:
    """``org/name@commit`` of a snapshot in the Hub's cache; empty for another folder."""
    match = _SNAPSHOT.search(folder.rstrip("/"))
    return f"{match[1]}/{match[2]}@{match[3]}" if match else ""


def s3_prefix(location: str) -> S3Uri:
    """The prefix that a location in S3 names, ending with a slash or empty. Raises CheckpointError
    for anything but an ``s3://`` URI with the name of a bucket."""
    prefix = S3Uri.parse(location).folder if is_s3_uri(location) else None
    if prefix is None or not prefix.has_bucket_name:
        message = f"{location!r} is not an s3:// prefix"
        raise CheckpointError(message, PREFIX_FORMAT, "invalid-s3-uri")
    return prefix


def means_folder(location: str) -> bool:
    """Whether this is a path: written as one, or like a Hub id where such a folder exists, or a
    file, which is then an error."""
    if is_s3_uri(location):
        return False
    return is_folder(location) or ("/" in location and os.path.exists(os.path.expanduser(location)))


def location_fix(word: str, flag: str = "") -> Fix | None:
    """How to write a folder that is given without ``./``; ``None`` for other text. ``flag`` is the
    option that has it."""
    if word and "/" not in word and os.path.isdir(word):
        options = (flag, f"./{word}") if flag else ()
        return Fix(f"there is a folder ./{word}: write ./{word}", options=options)
    return None
