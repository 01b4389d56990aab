"""One case: everything known about a pair in one situation, and its only builder.

``build_case`` adds to the user's Options what the catalogue and the checkpoints contain. Rules and
the memory model read the Case and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from peagle.catalog.schema import Architecture, Catalog, Drafter, EngineSetting, Target
from peagle.catalog.tables import (
    Instance,
    InstanceTable,
    PrefixCaching,
    Runtime,
    RuntimeTable,
    VersionRuleTable,
    ami_report,
    find_prefix_caching,
)
from peagle.checkpoints.architecture import read_architecture
from peagle.checkpoints.heads import Head
from peagle.checkpoints.models import Checkpoint
from peagle.errors import DamagedCheckpoint, OutOfRange
from peagle.options import MOST_COUNT, Options
from peagle.text import json_object
from peagle.vllm import versions
from peagle.vllm.defaults import NO_PREFIX_CACHING
from peagle.vllm.environment import Value, parse_values, settings_in
from peagle_serve.environment import canonical_name, name_variable
from peagle_serve.heads import is_head

DEFAULT_AMI = "default"
"""As ``Options.ami``: the AMI that SageMaker uses when a request specifies none."""

_DRAFTING = "use PAIR, --drafter, --k or --no-speculation"
_ONE_PER_ENDPOINT = "use --instance-type; --instance-count adds engines"
DECIDED: Mapping[str, str] = {
    "model": "use PAIR, and --model-source for weights in S3",
    "revision": "use PAIR: the catalogue names the commit, also one of your own with --catalog",
    "served-model-name": "leave it out: requests name the target's id",
    "max-model-len": "use --max-model-len",
    "max-num-seqs": "use --concurrency",
    "tensor-parallel-size": "use --instance-type: the plan uses as many of its GPUs as it needs",
    "pipeline-parallel-size": _ONE_PER_ENDPOINT,
    "data-parallel-size": _ONE_PER_ENDPOINT,
    "speculative-config": _DRAFTING,
    "spec-method": _DRAFTING,
    "spec-model": _DRAFTING,
    "spec-tokens": _DRAFTING,
    "port": "leave it out: SageMaker decides it",
    "host": "leave it out: SageMaker decides it",
}
"""Arguments of vLLM that a plan decides, and what decides them; the catalogue's settings never
do."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pair, on one runtime, under one load: all that a rule may read.

    ``options`` are the user's, in a plan with what it has decided. ``target`` and ``drafter`` are
    the catalogue's entries; the checkpoints are the models themselves, where they were read.
    ``settings`` are vLLM's arguments without the dashes, such as ``enable-prefix-caching``, and
    ``speculative_settings`` keys of ``--speculative-config`` beside method, model, K and
    parallel_drafting. ``instance`` is the catalogue's entry of the instance type, if any; with one,
    an ``ami`` of ``None`` is SageMaker's default.
    """

    options: Options
    target: Target
    drafter: Drafter | None
    k: int
    max_model_len: int
    runtime: Runtime
    runtimes: RuntimeTable
    instances: InstanceTable
    version_rules: VersionRuleTable
    targets: Mapping[str, Target] = field(default_factory=dict)
    own_target: bool = False
    instance: Instance | None = None
    tensor_parallel_size: int = 1
    ami: str | None = None
    on_cpu: bool = False
    settings: Mapping[str, Value] = field(default_factory=dict)
    speculative_settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def target_checkpoint(self) -> Checkpoint | None:
        """The target's files, when they were read."""
        return self.options.target_checkpoint

    @property
    def drafter_checkpoint(self) -> Checkpoint | None:
        """The drafter's files, when they were read."""
        return self.options.drafter_checkpoint

    @property
    def is_eagle(self) -> bool:
        """Whether the drafter is an EAGLE-3 or P-EAGLE head."""
        return self.drafter is not None and self.drafter.method == "eagle3"

    @property
    def is_parallel(self) -> bool:
        """Whether the drafter is a P-EAGLE head."""
        return self.is_eagle and self.drafter is not None and self.drafter.parallel_drafting

    @cached_property
    def head(self) -> Head | None:
        """The EAGLE-3 or P-EAGLE head that was read. Raises DamagedCheckpoint."""
        checkpoint = self.drafter_checkpoint
        if checkpoint is None or not self.is_eagle or not is_head(checkpoint.config):
            return None
        return Head(checkpoint)

    @cached_property
    def target_read(self) -> Checkpoint | None:
        """The target's checkpoint, when one was read and it holds a model, not a head."""
        checkpoint = self.target_checkpoint
        return None if checkpoint is None or is_head(checkpoint.config) else checkpoint

    @cached_property
    def architecture(self) -> Architecture:
        """The target's sizes: from its config.json when it was read, else the catalogue's.

        Raises DamagedCheckpoint for invalid values.
        """
        if self.target_read is None:
            return self.target.architecture
        try:
            return read_architecture(self.target_read.config)
        except DamagedCheckpoint as error:
            message = f"{self.target_read.location}/{error.message}"
            raise DamagedCheckpoint(message, error.fix, code=error.code) from error

    @cached_property
    def variables(self) -> dict[str, str]:
        """The container's variables, including those of vLLM's arguments, by canonical names."""
        settings = {name_variable(f"--{name}"): str(value) for name, value in self.settings.items()}
        environment = {
            canonical_name(name): value for name, value in self.options.environment.items()
        }
        return {**settings, **environment}

    def setting(self, name: str) -> Value | None:
        """The value of vLLM's argument ``name``, also where it is given as a key of another
        argument; ``False`` where ``no-<name>`` is set."""
        if name in self.settings:
            return self.settings[name]
        if self.settings.get(f"no-{name}") is True:
            return False
        if name != "attention-backend":
            return None
        member = json_object(self.settings.get("attention-config")).get("backend")
        nested = member if isinstance(member, Value) else None
        return self.settings.get("attention-config.backend", nested)


def build_case(
    catalog: Catalog,
    target: Target,
    drafter: Drafter | None,
    options: Options,
    gpu: Instance | None = None,
    *,
    own_target: bool | None = None,
    tensor_parallel_size: int | None = None,
    speculative_settings: Mapping[str, object] | None = None,
    on_cpu: bool = False,
) -> Case:
    """The case of this pair, with the catalogue's choice for everything that the options leave
    open. Settings of vLLM take precedence over the container's environment and over the
    catalogue's. ``gpu`` is the type whose GPU is assumed where the instance type is not known.
    ``own_target``: the target's checkpoint is not the one that the catalogue names, as usual.

    A vLLM version without an image in the catalogue and an unknown instance type are accepted:
    rules report them, with the nearest known one. Raises UserError for a malformed version.
    """
    asked = parse_values(options.settings)
    step = asked.get("max-num-batched-tokens")
    if isinstance(step, int | float) and step > MOST_COUNT:
        message = f"--max-num-batched-tokens is more than {MOST_COUNT:,}"
        raise OutOfRange(message, "use a smaller number")
    # The runtime of this version; one without an image where the table has none.
    table = catalog.runtimes
    version = versions.normalize(options.vllm or table.default)
    runtimes = {versions.normalize(runtime.vllm): runtime for runtime in table.runtimes}
    without_image = {"vllm": version, "tag": "", "regions": (), "cpu": "untried", "cpu_note": None,
                     "streamer": None}  # fmt: skip
    default = runtimes[versions.normalize(table.default)]
    runtime = runtimes.get(version) or default.model_copy(update=without_image)
    types = {instance.type: instance for instance in catalog.instances.instances}
    instance = types.get(options.instance_type or "")
    on = instance or gpu
    gpu_architecture = on.gpu_architecture if on else ""
    planned = engine_settings(target, drafter, gpu_architecture, runtime.vllm, table)
    settings: dict[str, Value | None] = {name: each.value for name, each in planned.items()}
    settings.update(settings_in(options.environment))
    settings.update(asked)
    size = tensor_parallel_size or settings.get("tensor-parallel-size")
    ami = options.ami
    if ami is None and options.instance_type is not None:
        ami = ami_for(table, runtime, options.instance_type)
    drafting = drafter.speculative_settings if drafter else {}
    return Case(
        options=options,
        target=target,
        drafter=drafter,
        k=options.k if options.k is not None else drafter.k_recommended if drafter else 0,
        max_model_len=options.max_model_len or target.default_max_model_len,
        runtime=runtime,
        runtimes=table,
        instances=catalog.instances,
        version_rules=catalog.version_rules,
        targets=catalog.targets,
        own_target=options.target_checkpoint is not None if own_target is None else own_target,
        instance=instance,
        tensor_parallel_size=size if type(size) is int and 0 < size <= MOST_COUNT else 1,
        ami=None if ami == DEFAULT_AMI else ami,
        on_cpu=on_cpu,
        settings={name: value for name, value in settings.items() if value is not None},
        speculative_settings={**drafting, **(speculative_settings or {})},
    )


def engine_settings(
    target: Target, drafter: Drafter | None, gpu_architecture: str, vllm: str, table: RuntimeTable
) -> dict[str, EngineSetting]:
    """The catalogue's arguments for vLLM by name, without dashes; the drafter's win. Prefix caching
    is off where it is not known to work with the drafter."""
    settings = [*target.engine_arguments, *(drafter.engine_arguments if drafter else ())]
    caching = prefix_caching_with(target, drafter, vllm, table)
    if caching and not caching.works:
        because = f"{caching.says} ({caching.source})"
        settings.append(EngineSetting(name=NO_PREFIX_CACHING, value=True, because=because))
    return {
        setting.name: setting
        for setting in applicable(settings, gpu_architecture, vllm)
        if setting.name not in DECIDED
    }


def prefix_caching_with(
    target: Target, drafter: Drafter | None, vllm: str, table: RuntimeTable
) -> PrefixCaching | None:
    """Whether prefix caching works with this drafter; ``None`` where the table does not say, as
    without an EAGLE head."""
    if drafter is None:
        return None
    architecture = target.architecture
    kinds = {group.kind for group in architecture.attention}
    return find_prefix_caching(table, architecture.class_name, kinds, drafter.method, vllm)


def applicable(
    settings: Iterable[EngineSetting], gpu_architecture: str, vllm: str
) -> Iterator[EngineSetting]:
    """Those of the settings that apply to this GPU architecture and this vLLM version."""
    for setting in settings:
        on_this_gpu = not setting.gpu_architectures or gpu_architecture in setting.gpu_architectures
        if on_this_gpu and (setting.vllm is None or versions.in_range(vllm, setting.vllm)):
            yield setting


def ami_for(table: RuntimeTable, runtime: Runtime, instance_type: str) -> str | None:
    """The host AMI that a request must specify for this image; ``None`` leaves it to SageMaker.

    The image needs a newer driver than the default AMI of some families has: the rule of AWS's
    SDK (sagemaker.serve, model_builder_servers.py).
    """
    family = parse_family(instance_type)
    if family in table.ami_families:
        return runtime.ami
    report = ami_report(table, family)
    return runtime.ami if report and report.ami == runtime.ami else None


def parse_family(instance_type: str) -> str:
    """``g6e`` of ``ml.g6e.xlarge``; empty for other text."""
    parts = instance_type.split(".")
    return parts[1] if len(parts) == 3 else ""
