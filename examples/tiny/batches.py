"""Batches of tokens [B, T] (int64) from the corpus, drawn with one seeded generator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from examples.tiny.chats import BUILDERS, Chat
from examples.tiny.corpus import Corpus, File
from examples.tiny.tokenizer import (
    BEGIN_ID,
    END_ID,
    PAD_ID,
    SYSTEM,
    chat_text,
    encode,
    turn,
)

Ids = NDArray[np.int16]

SYSTEM_TEXT = turn(SYSTEM, "You answer questions about Python.")
SYSTEM_SHARE = 0.1


@dataclass(frozen=True)
class Sizes:
    """Rows and tokens of the batches."""

    file_rows: int = 24
    file_tokens: int = 2048
    chat_rows: int = 96
    chat_tokens: int = 512


class Batches:
    """Draws windows of files and rows of chats; every row begins with the begin token."""

    def __init__(
        self, corpus: Corpus, tokenizer: Tokenizer, sizes: Sizes, device: torch.device, seed: int
    ) -> None:
        self.sizes, self.device = sizes, device
        self.draw = np.random.default_rng(seed)
        self.stream = _stream(tokenizer, corpus.train_files)
        self.kinds = _by_kind(tokenizer, corpus.train_chats)
        self.held_out_kinds = _by_kind(tokenizer, corpus.held_out_chats)
        self.system = _encode(tokenizer, [SYSTEM_TEXT])[0]

    def files(self) -> Tensor:
        """Windows of the training files."""
        rows, tokens = self.sizes.file_rows, self.sizes.file_tokens
        starts = self.draw.integers(0, len(self.stream) - tokens, rows)
        batch = np.stack([self.stream[s : s + tokens] for s in starts])
        batch[:, 0] = BEGIN_ID
        return self._tensor(batch)

    def chats(self) -> Tensor:
        """Rows of concatenated chats, all kinds equally often, padded."""
        return self._tensor(self._rows(self.kinds, self.sizes.chat_rows))

    def held_out(self, count: int) -> Iterator[Tensor]:
        """Batches of held-out chats."""
        for _ in range(count):
            yield self._tensor(self._rows(self.held_out_kinds, self.sizes.chat_rows))

    def _rows(self, kinds: list[list[Ids]], rows: int) -> Ids:
        tokens = self.sizes.chat_tokens
        batch = np.full((rows, tokens), PAD_ID, np.int16)
        for row in range(rows):
            filled = 1
            batch[row, 0] = BEGIN_ID
            if self.draw.random() < SYSTEM_SHARE:
                filled += len(self.system)
                batch[row, 1:filled] = self.system
            while filled < tokens - 32:
                kind = kinds[self.draw.integers(len(kinds))]
                chat = kind[self.draw.integers(len(kind))][: tokens - filled]
                batch[row, filled : filled + len(chat)] = chat
                filled += len(chat)
        return batch

    def _tensor(self, batch: Ids) -> Tensor:
        return torch.from_numpy(batch.astype(np.int64)).to(self.device)


def _encode(tokenizer: Tokenizer, texts: list[str]) -> list[Ids]:
    return [np.array(ids, np.int16) for ids in encode(tokenizer, texts)]


def _by_kind(tokenizer: Tokenizer, chats: list[Chat]) -> list[list[Ids]]:
    grouped = [[chat_text(c) for c in chats if c.kind == kind] for kind in BUILDERS]
    return [_encode(tokenizer, texts) for texts in grouped if texts]


def _stream(tokenizer: Tokenizer, files: list[File]) -> Ids:
    ends = np.array([END_ID, BEGIN_ID], np.int16)
    parts = [part for ids in _encode(tokenizer, [f.text for f in files]) for part in (ids, ends)]
    return np.concatenate(parts)
