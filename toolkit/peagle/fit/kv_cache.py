"""The key-value cache as vLLM allocates it: groups of layers, one page size, blocks.

vLLM keeps layers of one kind in a group and cuts the cache into blocks of one size that every
group draws from (v1/core/kv_cache_utils.py of vLLM 0.26 and 0.28, which agree here). So a hybrid
target's groups are padded to the same number of layers, and a drafter's layers can cost more than
their share: GPT-OSS-20B has 12 sliding and 12 full layers; with 4 drafter layers both groups have
16. Where heads have different sizes (Gemma), small layers take longer blocks, or
their pages are padded to the largest. Whole numbers throughout.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from peagle.catalog.schema import AttentionGroup

BLOCK_TOKENS = 16
"""vLLM's ``--block-size`` on NVIDIA GPUs."""


class Group(NamedTuple):
    """Layers with the same cache, in ``tables`` block tables of blocks of ``block_tokens`` tokens.

    ``window`` is in tokens, ``None`` for full attention. ``token_bytes`` is what all layers keep of
    one token, without padding.
    """

    tables: int
    block_tokens: int
    window: int | None
    token_bytes: int

    def blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request of ``length`` tokens holds in all of the group's tables.

        A sliding layer keeps its window and the tokens scheduled but not finished (``in_flight``),
        and one block more, since a window can start inside a block.
        """
        if self.window is None:
            return ceil(length / self.block_tokens) * self.tables
        kept = min(self.window - 1 + in_flight, length)
        return (ceil(kept / self.block_tokens) + 1) * self.tables


class Layout(NamedTuple):
    """The blocks of one GPU's cache: ``block_bytes`` is one block with all of its layers."""

    groups: tuple[Group, ...]
    block_bytes: int

    def request_blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request of ``length`` tokens takes."""
        return sum(group.blocks(length, in_flight) for group in self.groups)

    def request_bytes(self, length: int, in_flight: int) -> int:
        """Bytes of cache that one request of ``length`` tokens takes on one GPU."""
        return self.request_blocks(length, in_flight) * self.block_bytes

    def used_bytes(self, length: int, in_flight: int) -> int:
        """The part of ``request_bytes`` without padding."""
        return sum(
            group.blocks(length, in_flight) // group.tables * group.block_tokens * group.token_bytes
            for group in self.groups
        )

    def capacity(self, available: int, length: int, in_flight: int) -> tuple[int, float]:
        """``GPU KV cache size`` in tokens and ``Maximum concurrency``, as vLLM logs them.

        ``available`` is in bytes (get_kv_cache_capacity).
        """
        blocks = max(available, 0) // self.block_bytes
        concurrency = blocks / self.request_blocks(length, in_flight)
        return int(concurrency * length), concurrency


@lru_cache(maxsize=256)  # a plan asks for a few of them hundreds of times
def layout_of(
    groups: tuple[AttentionGroup, ...],
    tensor_parallel_size: int,
    element_bytes: int,
    padding_ratio: float,
) -> Layout:
    """How vLLM groups these layers on one GPU, and its block size (get_kv_cache_groups).

    A token takes a key and a value per layer and head: 2 x heads x head_dim x element_bytes. Heads
    are divided among the GPUs, at least one on each. Groups whose layer counts are nearer than
    ``padding_ratio`` are padded to the larger one.
    """
    counts: Counter[tuple[int | None, int, int]] = Counter()
    for group in groups:
        heads = ceil(group.kv_heads / tensor_parallel_size)
        window = group.window if group.kind == "sliding" else None
        counts[window, heads, group.head_dim] += group.layers
    kinds = [
        (count, window, 2 * heads * width * element_bytes)
        for (window, heads, width), count in counts.items()
    ]
    windows = {window for _, window, _ in kinds}
    if len(windows) == 1:
        # All layers keep the same tokens: one group, with each layer's own page size.
        token = sum(count * token_bytes for count, _, token_bytes in kinds)
        return Layout((Group(1, BLOCK_TOKENS, windows.pop(), token),), token * BLOCK_TOKENS)
    page = max(token_bytes for _, _, token_bytes in kinds) * BLOCK_TOKENS
    smallest, largest = min(counts.values()), max(counts.values())
    size = largest if largest < padding_ratio * smallest else smallest
    return Layout(
        tuple(
            Group(ceil(count / size), _block_tokens(page, token), window, count * token)
            for count, window, token in kinds
        ),
        page * size,
    )


def _block_tokens(page: int, token_bytes: int) -> int:
    """Tokens of a block: small layers take longer blocks, so that all pages have one size."""
    smaller = token_bytes * BLOCK_TOKENS
    return BLOCK_TOKENS * (page // smaller) if page % smaller == 0 else BLOCK_TOKENS
