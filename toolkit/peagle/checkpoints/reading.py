"""Reads one checkpoint: config.json, the headers of its weights, and facts about its tokenizer.

The first 64 KiB of each weight file hold most headers; the rest of a longer one is read as well.
All files are read in parallel, within a total time limit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeGuard

from peagle.checkpoints.files import CONFIG, LONGEST_CONFIG, located, parse_config
from peagle.checkpoints.models import Checkpoint, Source, Tensor, Tokenizer
from peagle.errors import CheckpointError, DamagedCheckpoint
from peagle.parallel import run_parallel
from peagle.text import json_object
from peagle_serve.checkpoint import (
    LARGEST_INDEX,
    first_names,
    header_bytes,
    index_name,
    other_weights,
    parse_header,
    parse_index,
    weight_files,
)

SECONDS = 60.0
"""Time limit of reading one checkpoint."""
FIRST_BYTES = 64 * 1024
"""Bytes of each weight file that are read first. GPT-OSS-120B's longest header has 8 kB."""
_PROCESSORS = {"preprocessor_config.json", "processor_config.json"}
"""Files of the processor that Transformers loads for a model that takes media."""

_SETTINGS, _VOCABULARY = "tokenizer_config.json", "tokenizer.json"
_GENERATION = "generation_config.json"
_TOKENIZERS = {_SETTINGS, _VOCABULARY, "tokenizer.model", "vocab.json", "tekken.json"}
_CHAT_TEMPLATES = {"chat_template.jinja", "chat_template.json"}
"""Files with the chat template, if that is not in tokenizer_config.json."""
_LONGEST_TOKENIZER = 1_000_000
"""Bytes. A larger file is not read."""


def read_checkpoint(source: Source, *, seconds: float = SECONDS) -> Checkpoint:
    """The checkpoint at ``source``.

    ``tensors`` is ``None`` without safetensors files. Raises DamagedCheckpoint for damaged
    files, CheckpointError without config.json and after ``seconds``, and whatever the source
    raises.
    """
    reader = _Reader(source, seconds)
    (sizes,) = reader.parallel(source.names)
    if CONFIG not in sizes:
        raise CheckpointError(
            f"{source.location} has no {CONFIG}",
            "specify the folder that contains the model's config.json",
            code="config-missing",
        )
    index = index_name(sizes)
    calls = [partial(reader.whole, CONFIG, sizes, LONGEST_CONFIG, parse_config)]
    if index in sizes:
        parse = partial(parse_index, file=index)
        calls.append(partial(reader.whole, index, sizes, LARGEST_INDEX, parse))
    config, *indexes = reader.parallel(*calls)
    with located(source.location):
        files = weight_files(sizes, indexes[0] if indexes else None)
    read_headers = (partial(reader.header, file, sizes[file]) for file in files)
    tokenizer, *headers = reader.parallel(partial(reader.tokenizer, sizes), *read_headers)
    tensors = {name: tensor for header in headers for name, tensor in header.items()}
    named: set[str] = set(*indexes)
    if missing := sorted(named.difference(tensors)):
        raise DamagedCheckpoint(
            f"{source.location}/{index} names tensors that no file holds ({len(missing):,}): "
            f"{first_names(missing)}",
            "copy index and weights again",
            code="weights-incomplete",
        )
    return Checkpoint(
        location=source.location,
        config=config,
        tensors=tensors if files else None,
        tokenizer=tokenizer,
        bytes_read=reader.bytes_read,
        other_weights=other_weights(sizes),
        takes_media=not _PROCESSORS.isdisjoint(sizes),
    )


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
        late = CheckpointError(
            f"{self._source.location} could not be read within {self._seconds:g} s",
            "check the network and try again, or copy the model to this machine",
            code="read-timeout",
        )
        return run_parallel(calls, self._until, late)

    def whole(
        self, name: str, sizes: Mapping[str, int], limit: int, parse: Callable[[bytes], Any]
    ) -> Any:
        """A whole file, parsed. Raises DamagedCheckpoint without reading it if it is too large."""
        if sizes[name] > limit:
            raise DamagedCheckpoint(
                f"{self._source.location}/{name} has {sizes[name]:,} bytes; the limit is {limit:,}",
                "copy it again",
                code="file-too-large",
            )
        content = self._read(name, 0, sizes[name])
        with located(self._source.location):
            return parse(content)

    def header(self, file: str, size: int) -> dict[str, Tensor]:
        """The tensors of one weight file."""
        head = self._read(file, 0, min(size, FIRST_BYTES))
        with located(self._source.location):
            whole = header_bytes(head, size, file)
        if whole > len(head) == FIRST_BYTES:
            head += self._read(file, FIRST_BYTES, whole - FIRST_BYTES)
        with located(self._source.location):
            return parse_header(head, size, file)

    def tokenizer(self, sizes: Mapping[str, int]) -> Tokenizer | None:
        """What its small files say; ``None`` without a tokenizer."""
        if _TOKENIZERS.isdisjoint(sizes):
            return None
        contents = {
            name: self._read(name, 0, sizes[name])
            for name in (_SETTINGS, _VOCABULARY, _GENERATION)
            if sizes.get(name, 1e9) <= _LONGEST_TOKENIZER
        }
        return describe_tokenizer(contents, has_template=not _CHAT_TEMPLATES.isdisjoint(sizes))

    def _read(self, name: str, start: int, length: int) -> bytes:
        content = self._source.read(name, start, length) if length else b""
        with self._counting:
            self.bytes_read += len(content)
        return content


def describe_tokenizer(contents: Mapping[str, bytes], has_template: bool = False) -> Tokenizer:
    """The tokenizer of these files. An unreadable one is ignored: vLLM does not read a drafter's
    tokenizer either."""
    settings, vocabulary = (json_object(contents.get(name)) for name in (_SETTINGS, _VOCABULARY))
    entries, decoder = vocabulary.get("added_tokens"), settings.get("added_tokens_decoder")
    listed = [entry for entry in entries if isinstance(entry, dict)] if _is_list(entries) else []
    added = {str(entry.get("id")): entry.get("content") for entry in listed}
    decoded = {
        number: token.get("content")
        for number, token in (decoder.items() if isinstance(decoder, dict) else ())
        if isinstance(token, dict)
    }
    roles = {
        role: token.get("content") if isinstance(token, Mapping) else token
        for role in ("eos", "pad", "unk")
        if (token := settings.get(f"{role}_token"))
    }
    model = vocabulary.get("model")
    tokens = model.get("vocab") if isinstance(model, dict) else None
    numbers = [*tokens.values()] if isinstance(tokens, dict) else []
    if _is_list(tokens):
        numbers = [len(tokens) - 1]
    if numbers:
        numbers += [entry.get("id") for entry in listed]
    return Tokenizer(
        vocab_size=max((n for n in numbers if type(n) is int), default=-1) + 1 or None,
        special_tokens={n: text for n, text in (decoded or added).items() if isinstance(text, str)},
        roles={role: token for role, token in roles.items() if isinstance(token, str)},
        generation=json_object(contents.get(_GENERATION)),
        has_chat_template=has_template or bool(settings.get("chat_template")),
    )


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
