"""What can be told of a tokenizer without downloading it, so that two can be compared.

One checkpoint, read: config.json, the headers of its weights, what its tokenizer is like.

Of a weight file the first 64 KiB are read, which hold most headers, and the rest of the header
where they do not; all files at once. Nothing takes longer than ``seconds`` in all.
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
from peagle.checkpoints.index import (
    LARGEST_INDEX,
    check_tensors,
    index_name,
    other_weights,
    parse_index,
    weight_files,
)
from peagle.checkpoints.models import Checkpoint, Source, Tensor
from peagle.checkpoints.safetensors import header_bytes, parse_header
from peagle.errors import CheckpointError
from peagle.parallel import run_parallel

FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "tekken.json",
)  # fmt: skip
"""Files that make a tokenizer."""

COMPARED = ("tokenizer.json", "tokenizer.model", "tekken.json")
"""Files that hold a whole vocabulary: where these agree, so do the tokenizers."""

SETTINGS = "tokenizer_config.json"
VOCABULARY = "tokenizer.json"

LONGEST_READ = 1_000_000
"""Bytes. A larger file is known by its size and digest only."""


def describe_tokenizer(
    sizes: Mapping[str, int],
    digests: Mapping[str, Mapping[str, str]],
    contents: Mapping[str, bytes],
) -> dict[str, Any]:
    """The sizes of the tokenizer's files by name, and, as far as they are known:

    ``digests``         file -> algorithm -> hexadecimal digits
    ``vocab_size``      tokens in a small tokenizer.json, the added ones included
    ``class``           ``tokenizer_class`` of tokenizer_config.json
    ``special_tokens``  id -> text of the added tokens of tokenizer_config.json

    ``contents`` holds the small files. One that cannot be read says nothing: vLLM does not read a
    drafter's tokenizer either.
    """
    settings, vocabulary = _object(contents.get(SETTINGS)), _object(contents.get(VOCABULARY))
    found: dict[str, Any] = {name: sizes[name] for name in FILES if name in sizes}
    known = {name: dict(said) for name, said in digests.items() if said}
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
    """Whether two descriptions are of the same tokenizer; ``None`` when they do not tell.

    True: a whole vocabulary is the same, byte for byte. False: a token id means two things, or the
    sizes of the vocabularies differ. Files that differ prove nothing, since the same vocabulary can
    be written in two ways.
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
"""What reading one checkpoint may take in all."""

_PROCESSORS = {"preprocessor_config.json", "processor_config.json"}
"""vLLM asks Transformers for the processor of a model that takes media; either file names one."""

FIRST_BYTES = 64 * 1024
"""What is read of a weight file at first. GPT-OSS-120B's longest header has 8 kB."""


def read_checkpoint(
    source: Source, *, config_only: bool = False, seconds: float = SECONDS
) -> Checkpoint:
    """The checkpoint at ``source``; with ``config_only`` no more than its config.json.

    ``tensors`` is ``None`` where no safetensors file lies. Raises CheckpointError for what is
    missing, damaged, or not there within ``seconds``; and what the source raises.
    """
    reader = _Reader(source, seconds)
    (sizes,) = reader.run_parallel(source.names)
    if CONFIG not in sizes:
        raise CheckpointError(
            f"{source.location} has no {CONFIG}", "name the folder that holds the model itself"
        )
    if config_only:
        (config,) = reader.run_parallel(partial(reader.config, sizes))
        return Checkpoint(
            source.location, config, bytes_read=reader.bytes_read, takes_media=_takes_media(sizes)
        )
    config, index = reader.run_parallel(partial(reader.config, sizes), partial(reader.index, sizes))
    with reader.place():
        files = weight_files(sizes, index)
    headers = (partial(reader.header, file, sizes[file]) for file in files)
    described, *found = reader.run_parallel(partial(reader.tokenizer, sizes), *headers)
    tensors = {name: tensor for header in found for name, tensor in header.items()}
    if index is not None:
        with reader.place():
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
    """Reads the parts of one checkpoint, counts the bytes, and ends in time."""

    def __init__(self, source: Source, seconds: float) -> None:
        self.bytes_read = 0
        self._source = source
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._counting = threading.Lock()

    def run_parallel(self, *calls: Callable[[], Any]) -> list[Any]:
        """The results of the calls. Raises CheckpointError when the time is over."""
        try:
            return run_parallel(calls, self._until)
        except TimeoutError as error:
            raise CheckpointError(
                f"{self._source.location} could not be read within {self._seconds:g} s",
                "check the network and repeat it, or copy the model to this machine",
            ) from error

    @contextmanager
    def place(self) -> Iterator[None]:
        """What is wrong with a file is told with the place where the file lies."""
        try:
            yield
        except CheckpointError as error:
            message = f"{self._source.location}/{error.message}"
            raise CheckpointError(message, error.fix) from error

    def config(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """config.json."""
        content = self._whole(CONFIG, sizes, LONGEST_CONFIG)
        with self.place():
            return parse_config(content)

    def index(self, sizes: Mapping[str, int]) -> dict[str, str] | None:
        """The file of each tensor, when there is an index."""
        name = index_name(sizes)
        if name not in sizes:
            return None
        content = self._whole(name, sizes, LARGEST_INDEX)
        with self.place():
            return parse_index(content, name)

    def header(self, file: str, size: int) -> dict[str, Tensor]:
        """The tensors of one weight file."""
        head = self._read(file, 0, min(size, FIRST_BYTES))
        with self.place():
            whole = header_bytes(head, size, file)
        if whole > len(head) == FIRST_BYTES:
            head += self._read(file, FIRST_BYTES, whole - FIRST_BYTES)
        with self.place():
            return parse_header(head, size, file)

    def tokenizer(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What can be told of the tokenizer."""
        there = [name for name in FILES if name in sizes]
        digests = {name: self._source.digests(name) for name in there}
        small = [
            name
            for name in (SETTINGS, VOCABULARY)
            if sizes.get(name, LONGEST_READ + 1) <= LONGEST_READ
        ]
        contents = {name: self._read(name, 0, sizes[name]) for name in small}
        return describe_tokenizer(sizes, digests, contents)

    def _whole(self, name: str, sizes: Mapping[str, int], most: int) -> bytes:
        """All of a small file. Raises CheckpointError, before reading it, when it is not small."""
        if sizes[name] > most:
            raise CheckpointError(
                f"{self._source.location}/{name} has {sizes[name]:,} bytes and is not read: the "
                f"limit is {most:,}",
                "copy it again",
            )
        return self._read(name, 0, sizes[name])

    def _read(self, name: str, start: int, length: int) -> bytes:
        content = self._source.read(name, start, length) if length else b""
        with self._counting:
            self.bytes_read += len(content)
        return content
