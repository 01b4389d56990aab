"""One case: everything known about a pair in one situation, and its only builder.

``plan``, ``check``, ``fit`` and ``deploy`` pass the user's options as CaseOptions; ``build_case``
adds what the catalogue and the checkpoints contain. Rules and the memory model read the Case and
nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from peagle.catalog.schema import Catalog, Drafter, EngineSetting, ProofPrompts, Target
from peagle.catalog.tables import Instance, InstanceTable, Runtime, RuntimeTable, VersionRuleTable
from peagle.checkpoints.architecture import read_architecture, read_dtype, read_quantization
from peagle.checkpoints.heads import attention_of, read_head, weight_bytes
from peagle.checkpoints.locations import split_revision
from peagle.checkpoints.models import Checkpoint
from peagle.vllm import versions
from peagle.vllm.environment import Value, settings_in

OWN = "own"
"""The name of a head, or of a target, that is not in the catalogue."""

DEFAULT_AMI = "default"
"""As ``CaseOptions.ami``: the AMI that SageMaker takes when a request names none."""

_UNKNOWN_HEAD_K = 5
"""K for a head of which only the checkpoint is known: P-EAGLE's model cards have 5 and more."""

_OLDEST = "0.1.0"
"""``min_vllm`` of a model that is not in the catalogue: the version rules know what it needs."""

_DTYPES = ("bfloat16", "float16", "float32")
_QUANTIZATIONS = ("mxfp4", "fp8", "nvfp4")

_PLANNED = frozenset(
    {
        "model", "revision", "served-model-name", "max-model-len", "max-num-seqs",
        "tensor-parallel-size", "speculative-config", "port", "host",
    }
)  # fmt: skip
"""Arguments of vLLM that a plan decides; the catalogue's settings never do."""


@dataclass(frozen=True)
class Case:
    """One pair, on one runtime, under one load: all that a rule may look at.

    ``target`` and ``drafter`` are the catalogue's entries; the checkpoints are the models
    themselves, where they were read. ``settings`` are vLLM's arguments without the dashes, such as
    ``enable-prefix-caching``; ``speculative_settings`` are keys of ``--speculative-config`` beside
    the drafter's own; ``environment`` is the container's. ``None`` means not known or not asked.

    ``own_target``: the target was read at a location that the user named. ``instance_type`` is
    what was asked for, ``instance`` its entry in the catalogue, if any. With an instance, an
    ``ami`` of ``None`` is SageMaker's default.
    """

    target: Target
    drafter: Drafter | None
    k: int
    max_model_len: int
    runtime: Runtime
    runtimes: RuntimeTable
    instances: InstanceTable
    version_rules: VersionRuleTable
    targets: Mapping[str, Target] = field(default_factory=dict)
    concurrency: int | None = None
    target_checkpoint: Checkpoint | None = None
    own_target: bool = False
    drafter_checkpoint: Checkpoint | None = None
    instance: Instance | None = None
    instance_type: str | None = None
    region: str | None = None
    image: str | None = None
    ami: str | None = None
    tensor_parallel_size: int = 1
    on_cpu: bool = False
    settings: Mapping[str, Value] = field(default_factory=dict)
    speculative_settings: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """What the user asked for beside the pair. ``None`` leaves the choice to the catalogue, or to
    vLLM.

    ``settings`` are vLLM's arguments without the dashes; they win over the container's
    ``environment`` and over the catalogue's settings, and a value of ``None`` removes one.
    ``speculative_settings`` are keys of ``--speculative-config``.
    """

    k: int | None = None
    max_model_len: int | None = None
    concurrency: int | None = None
    vllm: str | None = None
    instance_type: str | None = None
    tensor_parallel_size: int | None = None
    region: str | None = None
    image: str | None = None
    ami: str | None = None
    on_cpu: bool = False
    settings: Mapping[str, Value | None] = field(default_factory=dict)
    speculative_settings: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


NO_OPTIONS = CaseOptions()


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints that were read; ``None`` where none was.

    ``own_target``: the target's is not the one that the catalogue names.
    """

    target: Checkpoint | None = None
    drafter: Checkpoint | None = None
    own_target: bool = False


NO_CHECKPOINTS = Checkpoints()


def build_case(
    catalog: Catalog,
    target: Target,
    drafter: Drafter | None,
    options: CaseOptions = NO_OPTIONS,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
    gpu: Instance | None = None,
) -> Case:
    """The case of this pair, with the catalogue's choice for everything that the options leave
    open. ``gpu`` is the type whose GPU is assumed where the instance type is not known.

    A vLLM version without an image in the catalogue and an unknown instance type are accepted:
    rules report them, with the nearest known one. Raises UserError for a malformed version.
    """
    runtime = runtime_of(catalog.runtimes, options.vllm)
    types = {instance.type: instance for instance in catalog.instances.instances}
    instance = types.get(options.instance_type or "")
    on = instance or gpu
    planned = engine_settings(target, drafter, on.gpu_architecture if on else "", runtime.vllm)
    settings: dict[str, Value | None] = {name: each.value for name, each in planned.items()}
    settings.update(settings_in(options.environment))
    settings.update(options.settings)
    ami = options.ami
    if ami is None and options.instance_type is not None:
        ami = ami_for(catalog.runtimes, runtime, options.instance_type)
    return Case(
        target=target,
        drafter=drafter,
        k=options.k if options.k is not None else drafter.k_recommended if drafter else 0,
        max_model_len=options.max_model_len or target.default_max_model_len,
        runtime=runtime,
        runtimes=catalog.runtimes,
        instances=catalog.instances,
        version_rules=catalog.version_rules,
        targets=catalog.targets,
        concurrency=options.concurrency,
        target_checkpoint=checkpoints.target,
        own_target=checkpoints.own_target,
        drafter_checkpoint=checkpoints.drafter,
        instance=instance,
        instance_type=options.instance_type,
        region=options.region,
        image=options.image,
        ami=None if ami == DEFAULT_AMI else ami,
        tensor_parallel_size=options.tensor_parallel_size or 1,
        on_cpu=options.on_cpu,
        settings={name: value for name, value in settings.items() if value is not None},
        speculative_settings=options.speculative_settings,
        environment=options.environment,
    )


def engine_settings(
    target: Target, drafter: Drafter | None, gpu_architecture: str, vllm: str
) -> dict[str, EngineSetting]:
    """The catalogue's arguments for vLLM by name, without dashes; the drafter's win."""
    settings = [*target.engine_arguments, *(drafter.engine_arguments if drafter else ())]
    return {
        setting.name: setting
        for setting in applicable(settings, gpu_architecture, vllm)
        if setting.name not in _PLANNED
    }


def applicable(
    settings: Iterable[EngineSetting], gpu_architecture: str, vllm: str
) -> Iterator[EngineSetting]:
    """Those of the settings that apply to this GPU architecture and this vLLM version."""
    for setting in settings:
        on_this_gpu = not setting.gpu_architectures or gpu_architecture in setting.gpu_architectures
        if on_this_gpu and (setting.vllm is None or versions.in_range(vllm, setting.vllm)):
            yield setting


def own_drafter(location: str, target: Target, kind: Drafter, read: Checkpoint | None) -> Drafter:
    """The user's own head at ``location`` as a drafter of the kind of ``kind``.

    With its checkpoint in ``read``, the head decides whether it drafts in parallel, and its sizes
    are its own. A kind that is not public stands for this very head. Raises CheckpointError.
    """
    weights, revision = split_revision(location)
    own: dict[str, Any] = {
        "title": f"your own head {location}",
        "public": True,
        "weights": weights,
        "revision": revision,
        "licence": None,
        "fallback": None,
    }
    unknown = {"name": OWN, "k_trained": None, "published": ()}
    if kind.public:
        own |= unknown
    if read is not None:
        head = read_head(read.config)
        if head.parallel_drafting != kind.parallel_drafting:
            own |= unknown
            alike = (one for one in target.drafters if one.method == kind.method)
            same = (one for one in alike if one.parallel_drafting == head.parallel_drafting)
            kind = next(same, kind)
        stored = sum(tensor.size for tensor in (read.tensors or {}).values())
        own |= {
            "parallel_drafting": head.parallel_drafting,
            "format": "speculators" if head.speculators_format else "vllm",
            "hidden_layers": head.layers,
            "weight_bytes": stored or weight_bytes(head) or kind.weight_bytes,
            "max_positions": head.max_positions,
            "attention": attention_of(head) or kind.attention,
        }
    # What is not known of the head is the catalogue's number for its kind.
    return kind.model_copy(update=own | {"source": f"{kind.title} ({kind.source})"})


def drafter_of(read: Checkpoint) -> Drafter:
    """A head of which only its checkpoint is known. Raises CheckpointError."""
    head = read_head(read.config)
    return Drafter(
        name=OWN,
        title=f"the head {read.location}",
        method="eagle3",
        parallel_drafting=head.parallel_drafting,
        format="speculators" if head.speculators_format else "vllm",
        min_vllm=_OLDEST,
        k_recommended=_UNKNOWN_HEAD_K,
        hidden_layers=head.layers,
        max_positions=head.max_positions,
        attention=attention_of(head),
        source=read.location,
    )


def target_of(read: Checkpoint) -> Target:
    """A target of which only its checkpoint is known. Raises CheckpointError."""
    shape, dtype = read_architecture(read.config), read_dtype(read.config)
    quantization = read_quantization(read.config)
    name = re.sub(r"[^A-Za-z0-9]+", "-", read.location).strip("-") or "target"
    return Target(
        id=f"{OWN}/{name}",
        short_name=OWN,
        title=read.location,
        weights=read.location,
        revision="main",
        licence="",
        weight_bytes=sum(tensor.size for tensor in (read.tensors or {}).values()) or 1,
        parameters=1,
        dtype=dtype if dtype in _DTYPES else "bfloat16",  # type: ignore[arg-type]
        quantization=quantization if quantization in _QUANTIZATIONS else None,  # type: ignore[arg-type]
        min_vllm=_OLDEST,
        default_max_model_len=shape.max_positions,
        architecture=shape,
        default_drafter=OWN,
        drafters=(),
        proof=ProofPrompts(prompts=("",)),
        source=read.location,
    )


def runtime_of(table: RuntimeTable, vllm: str | None) -> Runtime:
    """The runtime of this version (``None``: the default); one without an image where the table
    has none. Raises UserError for a malformed version."""
    version = versions.normalise(vllm or table.default)
    known = {versions.normalise(runtime.vllm): runtime for runtime in table.runtimes}
    default = known[versions.normalise(table.default)]
    without_image = {"vllm": version, "tag": "", "regions": (), "cpu": "untried", "cpu_note": None,
                     "streamer": None}  # fmt: skip
    return known.get(version) or default.model_copy(update=without_image)


def nearest_version(version: str, known: Iterable[str]) -> str:
    """Of the versions ``known`` the one to use instead of ``version``: the newest of its own
    minor version, else the oldest that is newer, else the newest."""
    ordered = sorted(known, key=versions.parse)
    family = [name for name in ordered if versions.parse(name)[:2] == versions.parse(version)[:2]]
    newer = [name for name in ordered if versions.compare(name, version) > 0]
    return (family or newer[:1] or ordered)[-1]


def ami_for(table: RuntimeTable, runtime: Runtime, instance_type: str) -> str | None:
    """The host AMI that a request must name for this image; ``None`` leaves it to SageMaker.

    The image needs a newer driver than the default AMI of some families has: the rule of AWS's
    SDK (sagemaker.serve, model_builder_servers.py).
    """
    return runtime.ami if family_of(instance_type) in table.ami_families else None


def family_of(instance_type: str) -> str:
    """``g6e`` of ``ml.g6e.xlarge``; empty for other text."""
    parts = instance_type.split(".")
    return parts[1] if len(parts) == 3 else ""
