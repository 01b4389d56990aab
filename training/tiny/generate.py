"""The target's own continuations, which the heads learn from: batched decoding with a cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from training.tiny.layers import Attend, Rope
from training.tiny.target import Target
from training.tiny.tokenizer import END_ID, PAD_ID


class Cache:
    """Keys and values [B, h, T, d] of one layer, one token more with each call."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.used = 0
        self.room = 0

    def reserve(self, tokens: int) -> None:
        """How many tokens will come in all."""
        self.room = tokens

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.keys is None or self.values is None:
            size = (k.shape[0], k.shape[1], self.room, k.shape[3])
            self.keys, self.values = k.new_zeros(size), v.new_zeros(size)
        self.keys[:, :, self.used] = k[:, :, 0]
        self.values[:, :, self.used] = v[:, :, 0]
        self.used += 1
        seen = slice(0, self.used)
        return F.scaled_dot_product_attention(q, self.keys[:, :, seen], self.values[:, :, seen])


@torch.no_grad()
def rollout(
    target: Target, prompts: Tensor, lengths: Tensor, total: int, temperature: Tensor
) -> Tensor:
    """Continue prompts [B, P] to `total` tokens [B, total], padded after the end token.

    `temperature` [B]: 0 is greedy. All rows start together, and a row's prompt is forced on it
    until its length is reached, so that no padding stands before a prompt.
    """
    tokens = F.pad(prompts, (0, total - prompts.shape[1]), value=PAD_ID)
    caches = [Cache() for _ in target.layers]
    for cache in caches:
        cache.reserve(total)
    attends: list[Attend] = list(caches)
    done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for at in range(total - 1):
        rope = Rope(target.shape, torch.tensor([at], device=tokens.device))
        *_, last = target.walk(tokens[:, at : at + 1], rope, attends)
        drawn = _choose(target.logits(target.norm(last))[:, 0], temperature)
        free = at + 1 >= lengths
        chosen = torch.where(done, PAD_ID, drawn)
        tokens[:, at + 1] = torch.where(free, chosen, tokens[:, at + 1])
        done |= free & (chosen == END_ID)
    return tokens


def _choose(logits: Tensor, temperature: Tensor) -> Tensor:
    """Greedy where the temperature is 0, sampled elsewhere (Gumbel's trick); [B, V] -> [B]."""
    noise = -torch.empty_like(logits).exponential_().clamp(min=1e-9).log()
    return (logits + temperature[:, None] * noise).argmax(-1)
