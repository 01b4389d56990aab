"""Reads one checkpoint: config.json, the headers of its weights, and facts about its tokenizer.

The first 64 KiB of each weight file hold most headers; the rest of a longer one is read as well.
All files are read in parallel, within a total time limit. A tokenizer is described by what can be
compared without downloading a large file.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from peagle.checkpoints.config import CONFIG, LONGEST_CONFIG, parse_config
from peagle.checkpoints.models import Checkpoint, Source, Tensor
from peagle.checkpoints.weight_files import (
    check_tensors,
    header_bytes,
    parse_header,
    parse_index,
    weight_files,
)
from peagle.errors import CheckpointError
from peagle.parallel import run_parallel
from peagle_serve.safetensors import LARGEST_INDEX, index_name, other_weights

FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "tekken.json",
)  # fmt: skip
"""Files of a tokenizer."""

COMPARED = ("tokenizer.json", "tokenizer.model", "tekken.json")
"""Files with a whole vocabulary: if one is equal, the tokenizers are."""

SETTINGS = "tokenizer_config.json"
VOCABULARY = "tokenizer.json"

LONGEST_READ = 1_000_000
"""Bytes. Of a larger file only size and digest are used."""


def describe_tokenizer(
    sizes: Mapping[str, int],
    digests: Mapping[str, Mapping[str, str]],
    contents: Mapping[str, bytes],
) -> dict[str, Any]:
    """The sizes of the tokenizer's files by name, and, where known:

    ``digests``         file -> algorithm -> hexadecimal digits
    ``vocab_size``      tokens in a small tokenizer.json, the added ones included
    ``class``           ``tokenizer_class`` of tokenizer_config.json
    ``special_tokens``  id -> text of the added tokens of tokenizer_config.json

    ``contents`` holds the small files. An unreadable one is ignored: vLLM does not read a drafter's
    tokenizer either.
    """
    settings, vocabulary = _object(contents.get(SETTINGS)), _object(contents.get(VOCABULARY))
    found: dict[str, Any] = {name: sizes[name] for name in FILES if name in sizes}
    known = {name: dict(values) for name, values in digests.items() if values}
    size = _vocabulary_size(vocabulary)
    special = _special_tokens(settings) or _special_tokens_of(vocabulary)
    kind = settings.get("tokenizer_class")
    return found | {
        key: value
        for key, value in {
            "digests": known,
            "vocab_size": size,
            "class": kind if isinstance(kind, str) else None,
            "special_tokens": special,
        }.items()
        if value
    }


def same_tokenizer(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Whether two descriptions are of the same tokenizer; ``None`` if that is unknown.

    True: the vocabulary files are equal byte for byte. False: a token id has two meanings, or the
    vocabularies have different sizes. Different files prove nothing, since the same vocabulary can
    be written in several ways.
    """
    for name in COMPARED:
        mine, theirs = (side.get("digests", {}).get(name, {}) for side in (one, other))
        if any(mine[how] == theirs[how] for how in mine.keys() & theirs.keys()):
            return True
    special = one.get("special_tokens", {}), other.get("special_tokens", {})
    if any(special[0][number] != special[1][number] for number in special[0].keys() & special[1]):
        return False
    sizes = one.get("vocab_size"), other.get("vocab_size")
    return False if None not in sizes and sizes[0] != sizes[1] else None


def _object(content: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads((content or b"").decode())
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _vocabulary_size(document: Mapping[str, Any]) -> int | None:
    model, added = document.get("model"), document.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        ids = {number for number in vocabulary.values() if type(number) is int}
    elif isinstance(vocabulary, list):
        ids = set(range(len(vocabulary)))
    else:
        return None
    ids.update(number for number, _ in _added(added))
    return max(ids) + 1 if ids else None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    added = settings.get("added_tokens_decoder")
    entries = added.items() if isinstance(added, dict) else ()
    return {
        number: token["content"]
        for number, token in entries
        if isinstance(token, dict) and isinstance(token.get("content"), str)
    }


def _special_tokens_of(vocabulary: Mapping[str, Any]) -> dict[str, str]:
    return {str(number): text for number, text in _added(vocabulary.get("added_tokens"))}


def _added(tokens: Any) -> list[tuple[int, str]]:
    entries = tokens if isinstance(tokens, list) else []
    return [
        (entry["id"], entry["content"])
        for entry in entries
        if isinstance(entry, dict)
        and type(entry.get("id")) is int
        and isinstance(entry.get("content"), str)
    ]


SECONDS = 60.0
"""Time limit of reading one checkpoint."""

_PROCESSORS = {"preprocessor_config.json", "processor_config.json"}
"""Files of the processor that Transformers loads for a model that takes media."""

FIRST_BYTES = 64 * 1024
"""Of each weight file that are read first. GPT-OSS-120B's longest header has 8 kB."""


def read_checkpoint(
    source: Source, *, config_only: bool = False, seconds: float = SECONDS
) -> Checkpoint:
    """The checkpoint at ``source``; with ``config_only`` only its config.json.

    ``tensors`` is ``None`` without safetensors files. Raises CheckpointError for missing or damaged
    files and after ``seconds``, and whatever the source raises.
    """
    reader = _Reader(source, seconds)
    (sizes,) = reader.parallel(source.names)
    if CONFIG not in sizes:
        raise CheckpointError(
            f"{source.location} has no {CONFIG}", "name the folder that holds the model itself"
        )
    if config_only:
        (config,) = reader.parallel(partial(reader.config, sizes))
        return Checkpoint(
            source.location, config, bytes_read=reader.bytes_read, takes_media=_takes_media(sizes)
        )
    config, index = reader.parallel(partial(reader.config, sizes), partial(reader.index, sizes))
    with reader.located():
        files = weight_files(sizes, index)
    headers = (partial(reader.header, file, sizes[file]) for file in files)
    described, *found = reader.parallel(partial(reader.tokenizer, sizes), *headers)
    tensors = {name: tensor for header in found for name, tensor in header.items()}
    if index is not None:
        with reader.located():
            check_tensors(index, tensors, index_name(sizes))
    return Checkpoint(
        location=source.location,
        config=config,
        tensors=tensors if files else None,
        tokenizer=described,
        bytes_read=reader.bytes_read,
        other_weights=other_weights(sizes),
        takes_media=_takes_media(sizes),
    )


def _takes_media(names: Iterable[str]) -> bool:
    return not _PROCESSORS.isdisjoint(names)


class _Reader:
    """Reads the parts of one checkpoint within the time limit, and counts the bytes."""

    def __init__(self, source: Source, seconds: float) -> None:
        self.bytes_read = 0
        self._source = source
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._counting = threading.Lock()

    def parallel(self, *calls: Callable[[], Any]) -> list[Any]:
        """The results of the calls. Raises CheckpointError after the time limit."""
        try:
            return run_parallel(calls, self._until)
        except TimeoutError as error:
            raise CheckpointError(
                f"{self._source.location} could not be read within {self._seconds:g} s",
                "check the network and try again, or copy the model to this machine",
            ) from error

    @contextmanager
    def located(self) -> Iterator[None]:
        """Prefix the message of a CheckpointError with the location of the file."""
        try:
            yield
        except CheckpointError as error:
            message = f"{self._source.location}/{error.message}"
            raise CheckpointError(message, error.fix) from error

    def config(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """config.json."""
        content = self._whole(CONFIG, sizes, LONGEST_CONFIG)
        with self.located():
            return parse_config(content)

    def index(self, sizes: Mapping[str, int]) -> dict[str, str] | None:
        """The file of each tensor, if there is an index."""
        name = index_name(sizes)
        if name not in sizes:
            return None
        content = self._whole(name, sizes, LARGEST_INDEX)
        with self.located():
            return parse_index(content, name)

    def header(self, file: str, size: int) -> dict[str, Tensor]:
        """The tensors of one weight file."""
        head = self._read(file, 0, min(size, FIRST_BYTES))
        with self.located():
            whole = header_bytes(head, size, file)
        if whole > len(head) == FIRST_BYTES:
            head += self._read(file, FIRST_BYTES, whole - FIRST_BYTES)
        with self.located():
            return parse_header(head, size, file)

    def tokenizer(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The description of the tokenizer."""
        present = [name for name in FILES if name in sizes]
        digests = {name: self._source.digests(name) for name in present}
        small = [
            name
            for name in (SETTINGS, VOCABULARY)
            if sizes.get(name, LONGEST_READ + 1) <= LONGEST_READ
        ]
        contents = {name: self._read(name, 0, sizes[name]) for name in small}
        return describe_tokenizer(sizes, digests, contents)

    def _whole(self, name: str, sizes: Mapping[str, int], limit: int) -> bytes:
        """A whole file. Raises CheckpointError without reading it if it is too large."""
        if sizes[name] > limit:
            raise CheckpointError(
                f"{self._source.location}/{name} has {sizes[name]:,} bytes and is not read: the "
                f"limit is {limit:,}",
                "copy it again",
            )
        return self._read(name, 0, sizes[name])

    def _read(self, name: str, start: int, length: int) -> bytes:
        content = self._source.read(name, start, length) if length else b""
        with self._counting:
            self.bytes_read += len(content)
        return content
