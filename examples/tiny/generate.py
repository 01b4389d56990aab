"""Continuations by the target, the training data of the heads: batched decoding with a cache."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.tiny.layers import Attend, Rope
from examples.tiny.target import Target
from examples.tiny.tokenizer import END_ID, PAD_ID


class Cache:
    """The KV cache [B, h, T, d] of one layer; each call adds one token."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.used = 0
        self.capacity = 0

    def reserve(self, tokens: int) -> None:
        """Set the total number of tokens."""
        self.capacity = tokens

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.keys is None or self.values is None:
            size = (k.shape[0], k.shape[1], self.capacity, k.shape[3])
            self.keys, self.values = k.new_zeros(size), v.new_zeros(size)
        self.keys[:, :, self.used] = k[:, :, 0]
        self.values[:, :, self.used] = v[:, :, 0]
        self.used += 1
        filled = slice(0, self.used)
        return F.scaled_dot_product_attention(q, self.keys[:, :, filled], self.values[:, :, filled])


@torch.no_grad()
def rollout(
    target: Target, prompts: Tensor, lengths: Tensor, total: int, temperature: Tensor
) -> Tensor:
    """Continue prompts [B, P] to `total` tokens [B, total], padded after the end token.

    `temperature` [B]: 0 is greedy. All rows start together; up to its length, a row takes its
    prompt's tokens instead of generated ones, so no prompt needs left padding.
    """
    tokens = F.pad(prompts, (0, total - prompts.shape[1]), value=PAD_ID)
    caches = [Cache() for _ in target.layers]
    for cache in caches:
        cache.reserve(total)
    attends: list[Attend] = list(caches)
    done = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
    for position in range(total - 1):
        rope = Rope(target.shape, torch.tensor([position], device=tokens.device))
        *_, last = target.residuals(tokens[:, position : position + 1], rope, attends)
        drawn = _choose(target.logits(target.norm(last))[:, 0], temperature)
        generated = position + 1 >= lengths
        chosen = torch.where(done, PAD_ID, drawn)
        following = tokens[:, position + 1]
        tokens[:, position + 1] = torch.where(generated, chosen, following)
        done |= generated & (chosen == END_ID)
    return tokens


def _choose(logits: Tensor, temperature: Tensor) -> Tensor:
    """Greedy where the temperature is 0, sampled elsewhere (Gumbel's trick); [B, V] -> [B]."""
    noise = -torch.empty_like(logits).exponential_().clamp(min=1e-9).log()
    return (logits + temperature[:, None] * noise).argmax(-1)
