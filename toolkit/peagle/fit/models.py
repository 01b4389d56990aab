"""Input and output types of the memory fit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from peagle.catalog.schema import Architecture
from peagle.catalog.tables import CatalogEntry
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
        return f"{flag} {self.value}" if values else flag


class Comparison(CatalogEntry):
    """The same engine without its drafter. ``concurrency_kept`` is the share of its concurrent
    requests that remains with speculation; above 1 where the drafter turns asynchronous scheduling
    off, with which sliding layers keep more."""

    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    concurrency_kept: float | None


class Vision(NamedTuple):
    """The image tower of a multimodal target, by the numbers of its ``vision_config``.
    ``patch_values`` has one patch, and ``positions`` is the length of both position tables."""

    layers: int
    hidden_size: int
    intermediate_size: int
    attention_size: int
    head_dim: int
    patch_values: int
    positions: int


@dataclass(frozen=True)
class TargetModel:
    """The target; ``dtype`` and ``quantization`` as in the catalogue. ``checkpoint_bytes`` is the
    size of its weight files, ``tensors`` their headers, each if known."""

    architecture: Architecture
    dtype: str = "bfloat16"
    quantization: str | None = None
    checkpoint_bytes: int | None = None
    tensors: Mapping[str, Tensor] | None = field(default=None, hash=False)
    vision: Vision | None = None
    attention_bias: bool = False
    query_key_norm: bool = False

    @property
    def is_multimodal(self) -> bool:
        """Whether it also takes images."""
        return self.architecture.class_name.endswith("ForConditionalGeneration")

    @property
    def is_gpt_oss(self) -> bool:
        """Whether this is GPT-OSS: its attention and experts have biases, and only its experts are
        quantized."""
        return self.architecture.class_name.startswith("GptOss")

    @property
    def has_mxfp4_experts(self) -> bool:
        """Whether these are GPT-OSS experts in MXFP4."""
        return self.is_gpt_oss and self.quantization == "mxfp4"

    @property
    def normalizes_queries(self) -> bool:
        """Whether queries and keys are normalized per head."""
        named = self.architecture.class_name.startswith(("Qwen3", "Gemma"))
        return named or self.query_key_norm


@dataclass(frozen=True)
class DraftModel:
    """A drafter with weights. ``shape`` has its sizes, ``auxiliary`` counts the hidden states that
    ``fc`` reads, and ``own_embeddings`` and ``own_output`` are whether its checkpoint has these
    matrices. ``checkpoint_bytes`` is the size of its weight files, if known."""

    shape: Architecture
    method: str
    parallel_drafting: bool
    head_dim: int
    kv_heads: int
    target_hidden_size: int
    draft_vocab_size: int
    auxiliary: int
    own_embeddings: bool
    own_output: bool
    attention_bias: bool = False
    checkpoint_bytes: int | None = None


@dataclass(frozen=True)
class FitCase:
    """Input of the memory model: a pair on an engine."""

    target: TargetModel
    drafter: DraftModel | None
    engine: EngineConfig
