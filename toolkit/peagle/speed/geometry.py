"""What one step of the engine reads and computes, from the same sizes as the memory fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from peagle.catalog.schema import Architecture, AttentionGroup
from peagle.fit.models import DraftModel, FitCase, TargetModel
from peagle.fit.weights import (
    QUANTIZED_BYTES,
    attention_layers,
    attention_parameters,
    has_mxfp4_experts,
    is_gpt_oss,
    quantized_element,
    stored_parameters,
)
from peagle.vllm.defaults import EngineConfig, cache_element_bytes, capture_sizes, schedules_ahead
from peagle.vllm.gpus import element_bytes

_BF16 = 2

_REDUCED_VOCABULARY = 64_000
"""Tokens that an EAGLE-3 head drafts from when its config.json was not read: 32,000 to 64,000 in
the published ones."""

_MANY = 1024
"""Requests with which vLLM captures the most sizes."""


class Cache(NamedTuple):
    """Layers with the same KV cache: bytes that a token takes in all of them, and the FLOPs of a
    token's attention to one cached token. ``window`` is in tokens."""

    token_bytes: float
    token_flops: float
    window: int | None

    def length(self, context: float) -> float:
        """Tokens that these layers read at this context."""
        return min(context, self.window) if self.window else context


class Draft(NamedTuple):
    """A drafter: bytes of its layers and of its output matrix in each of ``passes`` per step.

    ``parallel``: one pass drafts all K tokens.
    """

    layers: int
    passes: int
    parallel: bool
    body_bytes: float
    lm_head_bytes: float
    vocab_size: int
    caches: tuple[Cache, ...]


class Geometry(NamedTuple):
    """The sizes of a pair on an engine. ``attention`` is everything of a layer but its experts, a
    dense layer has one expert; ``_numbers`` are parameters, ``_bytes`` bytes. ``converts_experts``:
    kernels convert the weights of the experts to 16 bits."""

    layers: int
    hidden_size: int
    vocab_size: int
    attention_bytes: float
    attention_numbers: float
    expert_bytes: float
    expert_numbers: float
    experts: int
    experts_per_token: int
    lm_head_bytes: float
    caches: tuple[Cache, ...]
    draft: Draft | None
    k: int
    tensor_parallel_size: int
    captured: int
    schedules_ahead: bool
    low_precision: bool
    converts_experts: bool

    def active_experts(self, tokens: float) -> float:
        """The expected number of a layer's experts that this many independent tokens use."""
        missed = 1 - self.experts_per_token / self.experts
        untouched: float = missed ** max(tokens, 1)
        return self.experts * (1 - untouched)

    def with_k(self, k: int) -> Geometry:
        """The same pair with K drafts; the target alone with 0."""
        draft = self.draft if k else None
        if draft and not draft.parallel:
            draft = draft._replace(passes=k)
        return self._replace(k=k, draft=draft)


@lru_cache(maxsize=1024)
def geometry_of(case: FitCase) -> Geometry:
    """The geometry of a case; sizes are of the whole model, not of one GPU."""
    target, engine = case.target, case.engine
    shape = target.architecture
    attention, experts, head = _element_sizes(target)
    groups = shape.attention
    mean = _without_experts(shape) / shape.layers
    router = (shape.experts or 0) * shape.hidden_size
    matrices = shape.feed_forward_matrices * (shape.blocks - shape.dense_layers) / shape.layers
    numbers = matrices * shape.hidden_size * shape.intermediate_size
    element = cache_element_bytes(engine, target.dtype)
    return Geometry(
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        attention_bytes=mean * attention + router * _BF16,
        attention_numbers=mean + router,
        expert_bytes=numbers * experts,
        expert_numbers=numbers,
        experts=shape.experts or 1,
        experts_per_token=(shape.experts_per_token or 1) if shape.experts else 1,
        lm_head_bytes=shape.vocab_size * shape.hidden_size * head,
        caches=_caches(groups, shape.query_heads, element),
        draft=_draft(case.drafter, engine.k, element) if case.drafter else None,
        k=engine.k,
        tensor_parallel_size=engine.tensor_parallel_size,
        captured=_captured(engine, shape.class_name),
        schedules_ahead=schedules_ahead(engine, case.drafter),
        low_precision=target.quantization in ("fp8", "nvfp4"),
        converts_experts=has_mxfp4_experts(target),
    )


def _captured(engine: EngineConfig, class_name: str) -> int:
    """Tokens of the largest batch with a CUDA graph. With fewer max-num-seqs vLLM captures fewer
    sizes, but always those of the batches that can occur."""
    most = replace(engine, k=0, max_num_seqs=max(engine.max_num_seqs, _MANY))
    sizes, _ = capture_sizes(most, None, class_name)
    return sizes[-1] if sizes else 0


def _element_sizes(target: TargetModel) -> tuple[float, float, float]:
    """Bytes per element of attention, experts (or feed-forward block) and output matrix."""
    plain, quantized = element_bytes(target.dtype), target.architecture.quantized
    if target.quantization is None and quantized is None:
        return plain, plain, plain
    if is_gpt_oss(target):
        return plain, QUANTIZED_BYTES.get(target.quantization or "", plain), plain
    if quantized and not quantized.attention:
        return plain, quantized.element_bytes, plain
    size = quantized_element(target)
    if size is None and target.checkpoint_bytes:
        # Known from the weight files only: the vocabulary is usually not quantized.
        shape = target.architecture
        vocabulary = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
        block = 3 * shape.hidden_size * shape.intermediate_size * (shape.experts or 1)
        layers = _without_experts(shape)
        left = max(target.checkpoint_bytes - vocabulary * plain, 0)
        size = min(max(left / (layers + shape.layers * block), 0.25), plain)
    return size or plain, size or plain, plain


def _without_experts(shape: Architecture) -> float:
    """Parameters that every token uses: attention, recurrent layers, dense layers and shared
    experts."""
    attention = sum(n * attention_parameters(shape, group) for group, n in attention_layers(shape))
    recurrent = sum(group.layers * group.parameters for group in shape.recurrent)
    width = shape.dense_layers * (shape.dense_intermediate_size or 0)
    width += (shape.blocks - shape.dense_layers) * (shape.shared_expert_size or 0)
    return attention + recurrent + shape.feed_forward_matrices * shape.hidden_size * width


def _caches(groups: Iterable[AttentionGroup], heads: int, element: float) -> tuple[Cache, ...]:
    return tuple(
        Cache(
            (1.0 if group.kind == "latent" else 2.0)
            * (group.layers * group.kv_heads * group.head_dim * element),
            4.0 * group.layers * heads * group.head_dim,
            group.window if group.kind == "sliding" else None,
        )
        for group in groups
    )


@lru_cache(maxsize=256)
def _draft(drafter: DraftModel, k: int, element: float) -> Draft:
    parallel = drafter.parallel_drafting or drafter.method in ("dflash", "dspark")
    body = stored_parameters(replace(drafter, own_embeddings=False, own_output=False))
    rows = drafter.draft_vocab_size
    if drafter.method == "eagle3" and not parallel and rows == drafter.vocab_size:
        rows = min(rows, _REDUCED_VOCABULARY)
    return Draft(
        layers=drafter.layers,
        passes=1 if parallel else max(k, 1),
        parallel=parallel,
        body_bytes=float(body * _BF16),
        lm_head_bytes=float(rows * drafter.hidden_size * _BF16),
        vocab_size=rows,
        caches=_caches(drafter.attention, drafter.query_heads, element),
    )
