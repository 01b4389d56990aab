"""Input and output types of the memory fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
    """One change that makes the case fit: the option ``knob``, its ``value`` and the cache."""

    knob: str
    value: str
    kv_cache_tokens: int
    max_concurrency: float

    @property
    def options(self) -> tuple[str, ...]:
        """The change as command-line arguments."""
        flag = "--tensor-parallel-size" if self.knob == "tp" else f"--{self.knob}"
        if self.value == self.knob:
            return (flag,)
        return flag, self.value.partition(",")[0] if self.knob == "instance-type" else self.value

    @property
    def option(self) -> str:
        """The change as a command-line option, for people."""
        flag, *values = self.options
        return " ".join((flag, self.value) if values else (flag,))


class Comparison(CatalogEntry):
    """The same engine without its drafter.

    ``concurrency_kept`` is the share of concurrent requests that remains with speculation. It can
    exceed 1 with n-gram and suffix drafting, which turn asynchronous scheduling off, so that
    sliding layers keep one batch less of each request.
    """

    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    concurrency_kept: float | None


class Vision(NamedTuple):
    """The image tower of a multimodal target, by the numbers of its ``vision_config``.

    ``patch_values`` is the number of values of one patch, ``positions`` the length of each of the
    two position tables.
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
    """Input of the fit: the target.

    ``dtype`` and ``quantization`` as in the catalogue. ``checkpoint_bytes`` is the size of its
    weight files, ``tensors`` their headers, each if known.
    """

    architecture: Architecture
    dtype: str = "bfloat16"
    quantization: str | None = None
    checkpoint_bytes: int | None = None
    tensors: Mapping[str, Tensor] | None = field(default=None, hash=False)
    vision: Vision | None = None
    attention_bias: bool = False
    query_key_norm: bool = False


@dataclass(frozen=True)
class DraftModel:
    """Input of the fit: a drafter with weights. ``auxiliary`` counts the hidden states that ``fc``
    reads.

    ``own_embeddings`` and ``own_output``: whether its checkpoint has these matrices;
    ``checkpoint_bytes`` is the size of its weight files, if known.
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


@dataclass(frozen=True)
class GpuMemory:
    """The GPUs of a case: ``visible_gib`` is what CUDA reports for one GPU, ``driver_gib`` what the
    driver reserves in addition; ``count`` is the number of usable GPUs."""

    instance: Instance
    count: int
    visible_gib: float
    driver_gib: float


@dataclass(frozen=True)
class FitCase:
    """Input of the memory model: a pair on an engine."""

    target: TargetModel
    drafter: DraftModel | None
    engine: EngineConfig
