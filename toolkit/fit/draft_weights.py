"""A drafter's weights on one GPU: a head of Llama layers in vLLM's EAGLE-3 layout.

``fc`` (kept whole on every rank) joins the target's hidden states; the first layer's projections
take twice the width; the rest are plain Llama layers. The embedding and the output matrix count
where the checkpoint brings its own: else vLLM shares the target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from toolkit.fit.allocator import allotted, allotted_all
from toolkit.fit.models import DraftModel
from toolkit.fit.target_weights import padded_vocabulary

_ELEMENT = 2
"""Heads are computed in bfloat16."""

_INDEX = 8
"""Each drafted token's id in the target's vocabulary is kept as int64."""


def drafter_bytes(drafter: DraftModel, tensor_parallel_size: int) -> int:
    """Bytes on one of ``tensor_parallel_size`` GPUs, without its rotary table."""
    return allotted_all(drafter_tensors(drafter, tensor_parallel_size))


def drafter_tensors(drafter: DraftModel, tp: int) -> Iterator[float]:
    """Bytes of every tensor on one of ``tp`` GPUs."""
    hidden, eagle = drafter.hidden_size, is_eagle(drafter)
    for layer in range(drafter.layers):
        yield from _layer_tensors(drafter, tp, 2 if eagle and layer == 0 else 1)
    yield _ELEMENT * hidden
    if eagle:
        taken = drafter.auxiliary * drafter.target_hidden_size
        yield _ELEMENT * taken * hidden
        yield _ELEMENT * taken * drafter.parallel_drafting
        yield _INDEX * drafter.draft_vocab_size
    if drafter.own_embeddings:
        yield _ELEMENT * padded_vocabulary(drafter.vocab_size, tp) * hidden
    if drafter.own_output:
        yield _ELEMENT * padded_vocabulary(drafter.draft_vocab_size, tp) * hidden


def stored_parameters(drafter: DraftModel) -> int:
    """Parameters that its weight files hold."""
    index = _INDEX * drafter.draft_vocab_size if is_eagle(drafter) else 0
    return int(sum(drafter_tensors(drafter, 1)) - index) // _ELEMENT


def is_eagle(drafter: DraftModel) -> bool:
    """Whether it is a head of the EAGLE-3 family, whose layout this is."""
    return drafter.method == "eagle3"


def draft_rotary_bytes(drafter: DraftModel) -> int:
    """Its table of sines and cosines."""
    return allotted(drafter.max_positions * drafter.head_dim * _ELEMENT)


def intermediate_of(parameters: int, like: DraftModel) -> int:
    """The feed-forward width with which a head of this shape has about so many parameters."""
    left = parameters - stored_parameters(replace(like, intermediate_size=0))
    return max(left // (3 * like.hidden_size * like.layers), like.hidden_size)


def _layer_tensors(drafter: DraftModel, tp: int, inputs: int) -> Iterator[float]:
    """One layer, whose projections take ``inputs`` hidden states side by side."""
    hidden = drafter.hidden_size
    heads, kv = drafter.query_heads / tp, ceil(drafter.kv_heads / tp)
    width, inner = (heads + 2 * kv) * drafter.head_dim, heads * drafter.head_dim
    yield _ELEMENT * inputs * hidden * width
    yield _ELEMENT * hidden * inner
    yield _ELEMENT * 2 * hidden * drafter.intermediate_size / tp
    yield _ELEMENT * hidden * drafter.intermediate_size / tp
    for _ in range(3):
        yield _ELEMENT * hidden
    if drafter.attention_bias:
        yield _ELEMENT * width
        yield _ELEMENT * hidden
