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

from peagle.catalog.schema import AttentionGroup, RecurrentGroup
from peagle.vllm.defaults import BLOCK_TOKENS

_LATENT_STEP = 128
"""Blocks of hybrids with latent attention are multiples of this."""


class Group(NamedTuple):
    """Layers with the same cache, in ``tables`` block tables of blocks of ``block_tokens`` tokens.

    ``window`` is in tokens, ``None`` for full attention. ``token_bytes`` is what all layers keep of
    one token, without padding. Recurrent layers keep ``states`` blocks per request, whatever its
    length, and ``token_bytes`` is one of these.
    """

    tables: int
    block_tokens: int
    window: int | None
    token_bytes: int
    states: int = 0

    def blocks(self, length: int, in_flight: int) -> int:
        """Blocks that one request of ``length`` tokens holds in all of the group's tables.

        A sliding layer keeps its window and the tokens scheduled but not finished (``in_flight``),
        and one block more, since a window can start inside a block.
        """
        if self.states:
            return self.states * self.tables
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

    def shared_blocks(self, tokens: int) -> int:
        """Of these, the blocks that all requests which begin with the same ``tokens`` share: whole
        ones of full attention. Windows move on, and each request has its own states."""
        full = (group for group in self.groups if group.window is None and not group.states)
        return sum(tokens // group.block_tokens * group.tables for group in full)

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


class Recurrent(NamedTuple):
    """The recurrent layers of a target, and what vLLM keeps of them: one state per request and one
    per draft, and with prefix caching one more (MambaSpec.max_memory_usage_bytes)."""

    groups: tuple[RecurrentGroup, ...] = ()
    k: int = 0
    prefix_caching: bool = True

    @property
    def states(self) -> int:
        """States of one request."""
        return 1 + self.k + self.prefix_caching


@lru_cache(maxsize=256)  # a plan asks for a few of them hundreds of times
def layout_of(
    groups: tuple[AttentionGroup, ...],
    tensor_parallel_size: int,
    element_bytes: int,
    padding_ratio: float,
    recurrent: Recurrent = Recurrent(),  # noqa: B008
    block_tokens: int = BLOCK_TOKENS,
) -> Layout:
    """How vLLM groups these layers on one GPU, and its block size (get_kv_cache_groups).

    A token takes a key and a value per layer and head: 2 x heads x head_dim x element_bytes, and in
    a latent layer head_dim x element_bytes on each GPU. Heads are divided among the GPUs, at least
    one on each. Groups whose layer counts are nearer than ``padding_ratio`` are padded to the
    larger one. ``block_tokens`` is vLLM's ``--block-size``. Of a hybrid with recurrent layers, the
    blocks of attention are made as large as a state, and states are padded to them
    (_align_hybrid_block_size of platforms/interface.py).
    """
    # Layers with other heads are another group, even where a token takes as many bytes.
    counts: Counter[tuple[int | None, int, int]] = Counter()
    for group in groups:
        window = group.window if group.kind == "sliding" else None
        token = _token_bytes(group, tensor_parallel_size, element_bytes)
        counts[window, group.head_dim, token] += group.layers
    kinds = [(count, window, token_bytes) for (window, _, token_bytes), count in counts.items()]
    windows = {window for _, window, _ in kinds}
    if len(windows) == 1 and not recurrent.groups:
        # All layers keep the same tokens: one group, with each layer's own page size.
        token = sum(count * token_bytes for count, _, token_bytes in kinds)
        return Layout((Group(1, block_tokens, windows.pop(), token),), token * block_tokens)
    states = [
        (group.layers, group.state_bytes(tensor_parallel_size, recurrent.k))
        for group in recurrent.groups
    ]
    latent = any(group.kind == "latent" for group in groups)
    state = max((size for _, size in states), default=0)
    block, page = 1, state
    if groups:
        target = _token_bytes(groups[0], tensor_parallel_size, element_bytes)
        step = max(_LATENT_STEP, block_tokens) if latent and state else block_tokens
        block = step * max(ceil(state / (step * target)), 1)
        page = max(token_bytes for _, _, token_bytes in kinds) * block
    layers = [*counts.values(), *(count for count, _ in states)]
    smallest, largest = min(layers), max(layers)
    size = largest if largest < padding_ratio * smallest else smallest
    return Layout(
        (
            *(
                Group(ceil(count / size), _block_tokens(page, token, block), window, count * token)
                for count, window, token in kinds
            ),
            *(
                Group(ceil(count / size), 1, None, count * state, recurrent.states)
                for count, state in states
            ),
        ),
        page * size,
    )


def _token_bytes(group: AttentionGroup, tensor_parallel_size: int, element_bytes: int) -> int:
    if group.kind == "latent":
        return group.head_dim * element_bytes
    return 2 * ceil(group.kv_heads / tensor_parallel_size) * group.head_dim * element_bytes


def _block_tokens(page: int, token_bytes: int, block: int) -> int:
    """Tokens of a block: small layers take longer blocks, so that all pages have one size."""
    smaller = token_bytes * block
    return block * (page // smaller) if page % smaller == 0 else block
