"""How much memory the key-value cache of one full-length request takes, as vLLM 0.28 allots it.

vLLM keeps layers of one kind in a group and cuts the cache into blocks of one size that every
group draws from (v1/core/kv_cache_utils.py). So a hybrid target's groups are padded to the same
number of layers, and a drafter's layers can cost more than their share: GPT-OSS-20B has 12 sliding
and 12 full layers, and with 4 drafter layers both groups are kept for 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from toolkit.catalog.models import AttentionGroup

BLOCK_TOKENS = 16
"""vLLM's ``--block-size`` on NVIDIA GPUs."""

BATCHES_IN_FLIGHT = 2
"""Batches whose tokens a sliding window still holds, with asynchronous scheduling."""

PADDING_RATIO = 1.5
"""Groups whose layer counts are nearer than this are padded to the larger (vLLM >= 0.18)."""


@dataclass(frozen=True)
class Layers:
    """Layers that keep the same cache on one GPU. ``window`` in tokens, ``None``: everything."""

    count: int
    window: int | None
    token_bytes: int


def layers_on_one_gpu(
    groups: Iterable[AttentionGroup], tensor_parallel_size: int, element_bytes: int
) -> tuple[Layers, ...]:
    """The layers as one of ``tensor_parallel_size`` GPUs keeps them, alike ones together.

    A token takes a key and a value per layer and head: 2 x heads x head_dim x element_bytes. Heads
    are divided among the GPUs, and each GPU keeps at least one.
    """
    counts: dict[tuple[int | None, int], int] = {}
    for group in groups:
        heads = ceil(group.kv_heads / tensor_parallel_size)
        kind = (
            group.window if group.kind == "sliding" else None,
            2 * heads * group.head_dim * element_bytes,
        )
        counts[kind] = counts.get(kind, 0) + group.layers
    return tuple(Layers(count, window, size) for (window, size), count in counts.items())


def request_bytes(layers: tuple[Layers, ...], length: int, batched_tokens: int) -> int:
    """Bytes of cache that one request of ``length`` tokens takes on one GPU."""
    windows = {kind.window for kind in layers}
    if len(windows) == 1:
        tokens = _blocks(_kept(windows.pop(), length, batched_tokens), BLOCK_TOKENS) * BLOCK_TOKENS
        return sum(kind.count * kind.token_bytes * tokens for kind in layers)
    page = max(kind.token_bytes for kind in layers) * BLOCK_TOKENS
    group_size = _group_size([kind.count for kind in layers])
    blocks = 0
    for kind in layers:
        block_tokens = _block_tokens(page, kind.token_bytes)
        needed = _blocks(_kept(kind.window, length, batched_tokens), block_tokens)
        # A window need not begin at the beginning of a block.
        needed += kind.window is not None
        blocks += needed * ceil(kind.count / group_size)
    return blocks * page * group_size


def _kept(window: int | None, length: int, batched_tokens: int) -> int:
    """Tokens of one request whose keys and values are kept at the same time."""
    if window is None:
        return length
    return min(window - 1 + BATCHES_IN_FLIGHT * batched_tokens, length)


def _group_size(counts: list[int]) -> int:
    smallest, largest = min(counts), max(counts)
    return largest if largest < PADDING_RATIO * smallest else smallest


def _block_tokens(page: int, token_bytes: int) -> int:
    """Tokens of a block: small layers take longer blocks, so that all pages have one size."""
    smaller = token_bytes * BLOCK_TOKENS
    return BLOCK_TOKENS * (page // smaller) if page % smaller == 0 else BLOCK_TOKENS


def _blocks(tokens: int, block_tokens: int) -> int:
    return ceil(tokens / block_tokens)
