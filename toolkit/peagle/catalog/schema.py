"""The catalogue: targets, drafters, measured speeds, and the tables. Sizes are bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, AliasPath, BaseModel, ConfigDict, Field, model_validator

from peagle.catalog.tables import (
    NO_VERSION_RULES,
    InstanceTable,
    Layers,
    NotNegative,
    Positive,
    RuntimeTable,
    ShortName,
    SpeedModel,
    Version,
    VersionRange,
    VersionRuleTable,
)
from peagle.findings import Level
from peagle.frozen import Frozen
from peagle.vllm.environment import Value

DRAFTLESS = frozenset({"ngram", "suffix"})
"""Methods that draft from the text itself and have no weights."""


class AttentionGroup(Frozen):
    """Layers with the same KV cache. ``window`` is in tokens.

    ``latent`` layers keep one vector of ``head_dim`` values per token, on every GPU; the others a
    key and a value per head.
    """

    kind: Literal["full", "sliding", "latent"]
    layers: Layers
    kv_heads: Positive
    head_dim: Positive
    window: Positive | None = None


class LatentAttention(Frozen):
    """Multi-head latent attention (MLA): ranks and head sizes.

    ``cached``: vLLM keeps the latent vector; else it keeps every head's key and value.
    ``indexer_dim`` is the head size of DeepSeek's sparse indexer, which has a cache of its own.
    """

    kv_rank: Positive
    nope_dim: Positive
    rope_dim: Positive
    value_dim: Positive
    query_rank: Positive | None = None
    indexer_dim: Positive | None = None
    cached: bool = True


class RecurrentGroup(Frozen):
    """Layers with linear attention, which keep a state of fixed size per request: a convolution
    over ``channels``, and ``values``. ``divided`` are numbers that the tensor-parallel size must
    divide; ``parameters`` are of one layer."""

    layers: Layers
    channels: NotNegative
    kernel: Positive
    values: NotNegative
    value_bytes: Positive = 2
    divided: tuple[Positive, ...] = ()
    parameters: Positive

    def state_bytes(self, tensor_parallel_size: int, k: int, element_bytes: int = 2) -> int:
        """Bytes of one layer's state on one GPU (mamba_utils.py of vLLM 0.28.0). The convolution
        keeps the tokens of the K drafts too."""
        tp = tensor_parallel_size
        convolution = self.channels // tp * (self.kernel - 1 + k) * element_bytes
        return convolution + self.values // tp * self.value_bytes


class QuantizedWeights(Frozen):
    """Quantized projections: bytes of an element with its share of the scales, and the block of
    outputs (``block_rows``) and inputs (``block_columns``) that share a scale. ``attention``:
    attention's projections are quantized too. ``whole_groups``: a GPU's share of an expert is whole
    blocks of inputs; other formats halve their groups."""

    element_bytes: float = Field(gt=0, allow_inf_nan=False)
    block_rows: Positive | None = None
    block_columns: Positive | None = None
    attention: bool = True
    whole_groups: bool = False


class Architecture(Frozen):
    """The numbers of a model's config.json that the memory fit needs.

    ``feed_forward_layers`` (``None``: all) have a feed-forward block. Where there are experts, its
    first ``dense_layers`` have none, and are ``dense_intermediate_size`` wide;
    ``shared_expert_size`` is the width of the experts that every token uses.
    ``attention_gate``: queries have a gate of the same size. ``per_layer_embeddings`` is the width
    of a second embedding, for all layers together (Gemma 3n).
    ``unknown_cache``: what of the cache is not known in vLLM's accounting; it counts as full.
    """

    class_name: str
    hidden_size: Positive
    layers: Layers
    query_heads: Positive
    attention: tuple[AttentionGroup, ...]
    vocab_size: Positive
    intermediate_size: Positive
    max_positions: Positive
    tied_embeddings: bool = False
    experts: Positive | None = None
    experts_per_token: Positive | None = None
    feed_forward_layers: NotNegative | None = None
    feed_forward_matrices: Literal[2, 3] = 3
    dense_layers: NotNegative = 0
    dense_intermediate_size: Positive | None = None
    shared_expert_size: Positive | None = None
    attention_gate: bool = False
    per_layer_embeddings: NotNegative = 0
    latent: LatentAttention | None = None
    recurrent: tuple[RecurrentGroup, ...] = ()
    quantized: QuantizedWeights | None = None
    unknown_cache: str = ""

    @property
    def blocks(self) -> int:
        """Layers with a feed-forward block."""
        return self.layers if self.feed_forward_layers is None else self.feed_forward_layers


class EngineSetting(Frozen):
    """A vLLM argument or an environment variable, and the reason for it.

    An argument's ``name`` has no leading hyphens; the value ``true`` means the bare flag.
    ``gpu_architectures`` limits it to GPUs (``sm_100``), ``vllm`` to versions; empty means all.
    """

    name: str
    value: Value
    because: str
    gpu_architectures: tuple[str, ...] = ()
    vllm: VersionRange | None = None


class PublishedAcceptance(Frozen):
    """A published acceptance length: a claim, not evidence."""

    benchmark: str
    k: Positive
    acceptance_length: float = Field(ge=1)
    source: str


class TextAcceptance(Frozen):
    """An acceptance length that ``peagle bench --acceptance`` measured on the user's own text."""

    k: Positive
    acceptance_length: float = Field(ge=1)
    source: str


class KnownProblem(Frozen):
    """A known problem of a drafter on the versions ``vllm``, and on ``instance_families`` such as
    ``g7e`` (empty: on all)."""

    code: ShortName
    level: Level
    summary: str
    vllm: VersionRange | None = None
    instance_families: tuple[str, ...] = ()
    fix: str = ""
    source: str


class LongContext(Frozen):
    """The ``drafter`` to take instead, for a context above ``max_model_len`` and for requests of
    ``request_tokens`` or more."""

    drafter: str
    max_model_len: Positive
    request_tokens: Positive


class Drafter(Frozen):
    """Proposes tokens for a target. P-EAGLE is vLLM's method ``eagle3`` with ``parallel_drafting``.
    ``weights`` are named as those of a target, if it has any."""

    name: ShortName
    title: str
    method: Literal["eagle3", "mtp", "dflash", "dspark", "ngram", "suffix"]
    parallel_drafting: bool = False
    public: bool = True
    weights: str | None = None
    revision: str | None = None
    format: Literal["vllm", "speculators"] | None = None
    licence: str | None = None
    min_vllm: Version
    k_trained: Positive | None = None
    k_recommended: Positive
    hidden_layers: Layers | None = None
    parameters: Positive | None = None
    weight_bytes: Positive | None = None
    max_positions: Positive | None = None
    attention: tuple[AttentionGroup, ...] = ()
    own_embeddings: bool | None = None
    acceptance_floor: float | None = Field(default=None, ge=1)
    fallback: str | None = None
    long_context: LongContext | None = None
    use: str | None = None
    engine_arguments: tuple[EngineSetting, ...] = ()
    speculative_settings: dict[str, Value] = {}
    published: tuple[PublishedAcceptance, ...] = ()
    on_text: tuple[TextAcceptance, ...] = ()
    problems: tuple[KnownProblem, ...] = ()
    source: str


class ProofPrompts(Frozen):
    """The fixed prompts whose accepted drafts prove a deployment."""

    prompts: tuple[str, ...]
    chat: bool = True
    max_tokens: Positive = 64


class Target(Frozen):
    """A model to serve. ``weights``: Hugging Face id, folder (``./`` is next to the file) or S3.

    Without a ``default_drafter`` it is served without speculation unless a drafter is named.
    """

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*$")]
    short_name: ShortName
    title: str
    weights: str
    revision: str
    licence: str
    gated: bool = False
    weight_bytes: Positive
    weight_patterns: tuple[str, ...] = ("*.safetensors",)
    parameters: Positive
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    quantization: Literal["mxfp4", "fp8", "nvfp4"] | None = None
    min_vllm: Version
    default_max_model_len: Positive
    architecture: Architecture
    special_tokens: dict[Literal["eos", "pad", "unk"], tuple[NotNegative, ...]] = {}
    engine_arguments: tuple[EngineSetting, ...] = ()
    environment: tuple[EngineSetting, ...] = ()
    default_drafter: ShortName | None = None
    drafters: tuple[Drafter, ...] = ()
    proof: ProofPrompts
    source: str


Latency = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Measurement(BaseModel):
    """Frozen and strict; unknown keys of evidence files are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, defer_build=True, validate_by_name=True)


class Seconds(Measurement):
    """Mean and percentiles of one kind of latency, in seconds."""

    mean: Latency
    p50: Latency
    p90: Latency
    p99: Latency


class Speed(Measurement):
    """Output tokens per second of one engine, with this drafter (name or id of its weights) and K,
    at this load; tokens are per request. Speed and latencies are those of the fastest of the
    ``repetitions``, since other work on the host only slows one down; ``low`` and ``high`` are the
    slowest and the fastest. ``cached_prompt_tokens`` of a prompt came from the prefix cache, of
    these ``shared_prompt_tokens`` are in all prompts. With more than one of ``turns``, requests are
    those of conversations after the first, each sent when the answer before ended; others are sent
    at once. ``max_cudagraph_capture_size`` is the largest batch with a CUDA graph, in tokens;
    ``None`` is vLLM's default."""

    drafter: str | None
    k: NotNegative
    concurrency: Positive
    output_tokens_per_second: float = Field(gt=0, allow_inf_nan=False)
    low: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    high: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    repetitions: Positive | None = None
    acceptance_length: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    prompt_tokens: Positive | None = None
    output_tokens: Positive | None = None
    cached_prompt_tokens: NotNegative = 0
    shared_prompt_tokens: NotNegative = 0
    turns: Positive = 1
    max_cudagraph_capture_size: NotNegative | None = None
    ttft_seconds: Seconds | None = None
    itl_seconds: Seconds | None = None
    tpot_seconds: Seconds | None = None

    @model_validator(mode="after")
    def _is_possible(self) -> "Speed":
        if (self.drafter is None) != (self.k == 0):
            raise ValueError(f"drafter {json.dumps(self.drafter)} with k {self.k}")
        if self.acceptance_length and self.acceptance_length > self.k + 1:
            raise ValueError(f"acceptance_length {self.acceptance_length} with k {self.k}")
        return self


NO_GPU = "CPU"
"""The GPU of a run without one. No instance has it, so no plan uses the run."""


class AcceptanceOnText(Measurement):
    """The mean acceptance length that a drafter, by name or id of its weights, reached on text."""

    drafter: str
    k: Positive
    acceptance_length: float = Field(ge=1, allow_inf_nan=False)


_VLLM = AliasPath("engine", "version")


class SpeedRun(Measurement):
    """The measured speeds of one file under ``evidence/``, and acceptance lengths ``on_text``.
    ``synthetic``: acceptance was set by hand; ``is_own``: the file is in the user's catalogue."""

    target: Annotated[str, AfterValidator(lambda pair: pair.partition("+")[0])] = Field(
        validation_alias="pair"
    )
    device: str = ""
    date: date
    engine_name: Literal["vllm"] = Field("vllm", validation_alias=AliasPath("engine", "name"))
    vllm: Version = Field(validation_alias=_VLLM)
    gpu: str = NO_GPU
    tensor_parallel_size: Positive = 1
    synthetic: bool = False
    file: str = ""
    speeds: tuple[Speed, ...] = ()
    is_own: bool = False
    caveat: str = Field(default="", max_length=400, pattern=r"^[^\x00-\x1f\x7f]*$")
    on_text: tuple[AcceptanceOnText, ...] = Field((), validation_alias="results")

    @model_validator(mode="after")
    def _names_its_gpu(self) -> "SpeedRun":
        absent = {"gpu", "tensor_parallel_size", "synthetic"} - self.model_fields_set
        if self.speeds and absent:
            raise ValueError(f"speeds without the keys {', '.join(sorted(absent))}")
        return self


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """Targets by id, and the tables. ``origins`` maps a target's id to the file it came from;
    ``speeds`` (by target's id) read each file at first use.
    ``is_extended``: a folder of the user's own adds to it (``--catalog``)."""

    targets: Mapping[str, Target]
    runtimes: RuntimeTable
    instances: InstanceTable
    origins: Mapping[str, str]
    speeds: Mapping[str, tuple[SpeedRun, ...]] = field(default_factory=dict)
    version_rules: VersionRuleTable = NO_VERSION_RULES
    speed_model: SpeedModel
    is_extended: bool = False


class Pair(NamedTuple):
    """A target with a drafter, or without."""

    target: Target
    drafter: Drafter | None
