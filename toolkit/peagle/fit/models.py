"""What the memory fit is asked and what it answers. Data without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peagle.catalog.schema import Architecture, AttentionGroup
from peagle.catalog.tables import CatalogEntry, Instance
from peagle.checkpoints.models import Tensor
from peagle.vllm.defaults import EngineConfig


class Fit(CatalogEntry):
    """The memory fit of one GPU rank. GiB and tokens; ``terms`` names every part."""

    fits: bool
    gpu: str
    gpu_count: int
    gpu_memory_gib: float
    tensor_parallel_size: int
    weights_gib: float
    drafter_gib: float
    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    terms: dict[str, float]


class Advice(CatalogEntry):
    """One change that makes it fit: which ``knob``, the new ``value``, and what comes of it."""

    knob: str
    value: str
    kv_cache_tokens: int
    max_concurrency: float


class Comparison(CatalogEntry):
    """The same engine without its drafter, and what the drafter takes from it.

    ``concurrency_kept`` is the share of requests at a time that remains with speculation. It can be
    above 1 with a drafter that has no weights: n-gram and suffix turn asynchronous scheduling off,
    so that sliding layers keep one batch less of every request.
    """

    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    concurrency_kept: float | None


@dataclass(frozen=True)
class Vision:
    """The image tower of a multimodal target, by the numbers of its ``vision_config``.

    ``patch_values`` is the size of one patch as the tower takes it, ``positions`` the length of its
    two tables of positions.
    """

    layers: int
    hidden_size: int
    intermediate_size: int
    attention_size: int
    head_dim: int
    patch_values: int
    positions: int


@dataclass(frozen=True)
class TargetModel:
    """The target as the fit sees it.

    ``dtype`` and ``quantization`` as in the catalogue. ``checkpoint_bytes`` is what its weight
    files hold, where that is known; ``tensors`` are their headers, where they were read.
    """

    architecture: Architecture
    dtype: str = "bfloat16"
    quantization: str | None = None
    checkpoint_bytes: int | None = None
    tensors: Mapping[str, Tensor] | None = None
    vision: Vision | None = None
    attention_bias: bool = False
    query_key_norm: bool = False


@dataclass(frozen=True)
class DraftModel:
    """The drafter as the fit sees it. ``auxiliary`` counts the hidden states that ``fc`` reads.

    ``own_embeddings`` and ``own_output`` say whether its checkpoint brings matrices of its own;
    ``checkpoint_bytes`` is what its weight files hold, where that is known. A drafter without
    weights (n-gram) is no DraftModel.
    """

    method: str
    parallel_drafting: bool
    layers: int
    hidden_size: int
    target_hidden_size: int
    intermediate_size: int
    query_heads: int
    head_dim: int
    kv_heads: int
    vocab_size: int
    draft_vocab_size: int
    max_positions: int
    auxiliary: int
    own_embeddings: bool
    own_output: bool
    attention: tuple[AttentionGroup, ...]
    attention_bias: bool = False
    checkpoint_bytes: int | None = None
    tensors: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class GpuMemory:
    """The GPUs of a case: ``visible_gib`` is what CUDA sees of one, ``driver_gib`` what the driver
    reserves besides; ``count`` are the GPUs that may be used."""

    instance: Instance
    count: int
    visible_gib: float
    driver_gib: float


@dataclass(frozen=True)
class FitCase:
    """A pair on an engine: all that the memory model looks at."""

    target: TargetModel
    drafter: DraftModel | None
    engine: EngineConfig
