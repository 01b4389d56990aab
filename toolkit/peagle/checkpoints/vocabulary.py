"""The vocabulary that GPT-OSS needs next to its weights.

openai_harmony, with which vLLM reads and writes GPT-OSS's format, downloads it when the engine
starts, unless ``TIKTOKEN_ENCODINGS_BASE`` names a folder that holds it. It accepts no other file
than this one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle import store
from peagle.checkpoints.files import CONFIG, LONGEST_CONFIG
from peagle.checkpoints.models import Source
from peagle.text import json_object
from peagle_serve.contract import VOCABULARY_FILE, VOCABULARY_VARIABLE

VOCABULARY_URL = f"https://openaipublic.blob.core.windows.net/encodings/{VOCABULARY_FILE}"
VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""As openai_harmony 0.0.8 checks it."""

_MODEL_TYPE = "gpt_oss"
"""``model_type`` in config.json with which vLLM uses the harmony format."""


def vocabulary_folder() -> Path:
    """Where a user puts the file, and where the toolkit keeps it."""
    return store.home() / "vocabulary"


def find_vocabulary() -> Path | None:
    """The vocabulary on this machine: where openai_harmony looks, or in ``vocabulary_folder``;
    ``None`` without one."""
    named = os.environ.get(VOCABULARY_VARIABLE)
    for folder in (*([Path(named)] if named else []), vocabulary_folder()):
        path = folder / VOCABULARY_FILE
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == VOCABULARY_SHA256:
            return path
    return None


def needs_vocabulary(source: Source) -> bool:
    """Whether the model at ``source`` uses the harmony format, by its config.json."""
    if CONFIG not in source.names():
        return False
    config = json_object(source.read(CONFIG, 0, LONGEST_CONFIG))
    return config.get("model_type") == _MODEL_TYPE


def with_vocabulary(source: Source) -> Source:
    """``source`` with the vocabulary, if its model needs it, lacks it, and this machine has it."""
    if VOCABULARY_FILE in source.names() or not needs_vocabulary(source):
        return source
    vocabulary = find_vocabulary()
    return _WithVocabulary(source, vocabulary) if vocabulary else source


@dataclass(frozen=True)
class _WithVocabulary:
    """A source with one more file, which is on this machine."""

    source: Source
    vocabulary: Path

    @property
    def location(self) -> str:
        return self.source.location

    def names(self) -> Mapping[str, int]:
        return {**self.source.names(), VOCABULARY_FILE: self.vocabulary.stat().st_size}

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name != VOCABULARY_FILE:
            return self.source.read(name, start, length)
        end = None if length is None else start + length
        return self.vocabulary.read_bytes()[start:end]

    def digests(self, name: str) -> Mapping[str, str]:
        return (
            {"sha256": VOCABULARY_SHA256} if name == VOCABULARY_FILE else self.source.digests(name)
        )
