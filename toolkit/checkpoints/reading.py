"""One checkpoint, read: config.json, the headers of its weights, what its tokenizer is like.

Of a weight file the first 64 KiB are read, which hold most headers, and the rest of the header
where they do not; all files at once. Nothing takes longer than ``seconds`` in all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from toolkit.checkpoints import tokenizer
from toolkit.checkpoints.at_once import at_once
from toolkit.checkpoints.config import CONFIG, LONGEST_CONFIG, parse_config
from toolkit.checkpoints.header import header_bytes, parse_header
from toolkit.checkpoints.index import (
    LONGEST_INDEX,
    check_tensors,
    index_name,
    other_weights,
    parse_index,
    weight_files,
)
from toolkit.checkpoints.models import Checkpoint, Tensor
from toolkit.checkpoints.source import Source
from toolkit.errors import CheckpointError

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
    (sizes,) = reader.at_once(source.names)
    if CONFIG not in sizes:
        raise CheckpointError(
            f"{source.location} has no {CONFIG}", "name the folder that holds the model itself"
        )
    if config_only:
        (config,) = reader.at_once(partial(reader.config, sizes))
        return Checkpoint(
            source.location, config, bytes_read=reader.bytes_read, takes_media=_takes_media(sizes)
        )
    config, index = reader.at_once(partial(reader.config, sizes), partial(reader.index, sizes))
    with reader.place():
        files = weight_files(sizes, index)
    headers = (partial(reader.header, file, sizes[file]) for file in files)
    described, *found = reader.at_once(partial(reader.tokenizer, sizes), *headers)
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

    def at_once(self, *calls: Callable[[], Any]) -> list[Any]:
        """The results of the calls. Raises CheckpointError when the time is over."""
        try:
            return at_once(calls, self._until)
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
        content = self._whole(name, sizes, LONGEST_INDEX)
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
        there = [name for name in tokenizer.FILES if name in sizes]
        digests = {name: self._source.digests(name) for name in there}
        small = [
            name
            for name in (tokenizer.SETTINGS, tokenizer.VOCABULARY)
            if sizes.get(name, tokenizer.LONGEST_READ + 1) <= tokenizer.LONGEST_READ
        ]
        contents = {name: self._read(name, 0, sizes[name]) for name in small}
        return tokenizer.describe_tokenizer(sizes, digests, contents)

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
