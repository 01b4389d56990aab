"""Reads one checkpoint: config.json, the headers of its weights, and facts about its tokenizer.

The first 64 KiB of each weight file hold most headers; the rest of a longer one is read as well.
All files are read in parallel, within a total time limit. A tokenizer is described by what can be
compared without downloading a large file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from peagle.checkpoints.files import CONFIG, LONGEST_CONFIG, located, parse_config
from peagle.checkpoints.models import Checkpoint, Source, Tensor
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
_EMBEDDERS = {"config_sentence_transformers.json", "modules.json", "sentence_bert_config.json"}
"""Files of sentence-transformers, beside weights whose class may be that of a generator."""

_SETTINGS = "tokenizer_config.json"
_VOCABULARY = "tokenizer.json"
_GENERATION = "generation_config.json"
_TOKENIZER_FILES = (
    _VOCABULARY, _SETTINGS, "tokenizer.model", "vocab.json", "merges.txt",
    "special_tokens_map.json", "tekken.json",
)  # fmt: skip
_WHOLE_VOCABULARIES = (_VOCABULARY, "tokenizer.model", "tekken.json")
"""Files with a whole vocabulary: if one is equal, the tokenizers are."""
_CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
"""Files with the chat template, if that is not in tokenizer_config.json."""
_LONGEST_TOKENIZER = 1_000_000
"""Bytes. Of a larger file only size and digest are used."""


def read_checkpoint(
    source: Source, *, config_only: bool = False, seconds: float = SECONDS
) -> Checkpoint:
    """The checkpoint at ``source``; with ``config_only`` only its config.json.

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
    takes_media = not _PROCESSORS.isdisjoint(sizes)
    embeds = not _EMBEDDERS.isdisjoint(sizes)
    read_config = partial(reader.whole, CONFIG, sizes, LONGEST_CONFIG, parse_config)
    if config_only:
        (config,) = reader.parallel(read_config)
        read = reader.bytes_read
        return Checkpoint(
            source.location, config, bytes_read=read, takes_media=takes_media, embeds=embeds
        )
    name = index_name(sizes)
    read_index = partial(
        reader.whole, name, sizes, LARGEST_INDEX, lambda content: parse_index(content, name)
    )
    config, *indexes = reader.parallel(read_config, *([read_index] if name in sizes else []))
    index = indexes[0] if indexes else None
    with located(source.location):
        files = weight_files(sizes, index)
    read_headers = (partial(reader.header, file, sizes[file]) for file in files)
    tokenizer, *headers = reader.parallel(partial(reader.tokenizer, sizes), *read_headers)
    tensors = {name: tensor for header in headers for name, tensor in header.items()}
    if missing := sorted(set(index or ()).difference(tensors)):
        raise DamagedCheckpoint(
            f"{source.location}/{name} names tensors that no file holds ({len(missing):,}): "
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
        takes_media=takes_media,
        embeds=embeds,
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
        try:
            return run_parallel(calls, self._until)
        except TimeoutError as error:
            raise CheckpointError(
                f"{self._source.location} could not be read within {self._seconds:g} s",
                "check the network and try again, or copy the model to this machine",
                code="read-timeout",
            ) from error

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

    def tokenizer(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        digests = {n: self._source.digests(n) for n in _TOKENIZER_FILES if n in sizes}
        small = (
            n
            for n in (_SETTINGS, _VOCABULARY, _GENERATION)
            if sizes.get(n, 1e9) <= _LONGEST_TOKENIZER
        )
        contents = {name: self._read(name, 0, sizes[name]) for name in small}
        return describe_tokenizer(sizes, digests, contents)

    def _read(self, name: str, start: int, length: int) -> bytes:
        content = self._source.read(name, start, length) if length else b""
        with self._counting:
            self.bytes_read += len(content)
        return content


def describe_tokenizer(
    sizes: Mapping[str, int],
    digests: Mapping[str, Mapping[str, str]],
    contents: Mapping[str, bytes],
) -> dict[str, Any]:
    """The sizes of the tokenizer's files by name, and, where known:

    ``digests``         file -> algorithm -> hexadecimal digits
    ``vocab_size``      tokens in a small tokenizer.json, the added ones included
    ``class``           ``tokenizer_class`` of tokenizer_config.json
    ``special_tokens``  id -> text of the added tokens
    ``roles``           ``eos``, ``pad``, ``unk`` -> text of that token
    ``generation``      generation_config.json
    ``chat_template``   true, if there is a chat template

    ``contents`` holds the small files. An unreadable one is ignored: vLLM does not read a drafter's
    tokenizer either.
    """
    settings, vocabulary = (json_object(contents.get(name)) for name in (_SETTINGS, _VOCABULARY))
    kind, entries = settings.get("tokenizer_class"), vocabulary.get("added_tokens")
    added = {
        entry["id"]: entry["content"]
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict)
        and type(entry.get("id")) is int
        and isinstance(entry.get("content"), str)
    }
    decoder = settings.get("added_tokens_decoder")
    special = {
        number: token["content"]
        for number, token in (decoder.items() if isinstance(decoder, dict) else ())
        if isinstance(token, dict) and isinstance(token.get("content"), str)
    }
    named = {role: settings.get(f"{role}_token") for role in ("eos", "pad", "unk")}
    roles = {
        role: token.get("content") if isinstance(token, Mapping) else token
        for role, token in named.items()
    }
    properties = {
        "digests": {name: dict(values) for name, values in digests.items() if values},
        "vocab_size": _vocabulary_size(vocabulary, added),
        "class": kind if isinstance(kind, str) else None,
        "roles": {role: token for role, token in roles.items() if isinstance(token, str)},
        "generation": json_object(contents.get(_GENERATION)),
        "special_tokens": special or {str(n): text for n, text in added.items()},
        "chat_template": bool(settings.get("chat_template") or sizes.keys() & {*_CHAT_TEMPLATES}),
    }
    present = {key: value for key, value in properties.items() if value}
    return {name: sizes[name] for name in _TOKENIZER_FILES if name in sizes} | present


def same_tokenizer(tokenizer: Mapping[str, Any], other: Mapping[str, Any]) -> bool | None:
    """Whether two descriptions are of the same tokenizer; ``None`` if that is unknown.

    True: the vocabulary files are equal byte for byte. False: a token id has two meanings, or the
    vocabularies have different sizes. Different files prove nothing, since the same vocabulary can
    be written in several ways.
    """
    for name in _WHOLE_VOCABULARIES:
        mine, theirs = (side.get("digests", {}).get(name, {}) for side in (tokenizer, other))
        if any(mine[algorithm] == theirs[algorithm] for algorithm in mine.keys() & theirs.keys()):
            return True
    special = tokenizer.get("special_tokens", {}), other.get("special_tokens", {})
    if any(special[0][number] != special[1][number] for number in special[0].keys() & special[1]):
        return False
    sizes = tokenizer.get("vocab_size"), other.get("vocab_size")
    return False if None not in sizes and sizes[0] != sizes[1] else None


def _vocabulary_size(document: Mapping[str, Any], added: Mapping[int, str]) -> int | None:
    model = document.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        ids = {number for number in vocabulary.values() if type(number) is int}
    elif isinstance(vocabulary, list):
        ids = {len(vocabulary) - 1} if vocabulary else set()
    else:
        return None
    return max(ids | set(added), default=-1) + 1 or None
