"""What rules look at. Data without behaviour.

From the catalogue and what was asked for to a case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypedDict, Unpack

from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.catalog.tables import (
    NO_VERSION_RULES,
    Instance,
    InstanceTable,
    Runtime,
    RuntimeTable,
    VersionRuleTable,
)
from peagle.checkpoints.models import Checkpoint
from peagle.vllm import versions
from peagle.vllm.environment import Value


@dataclass(frozen=True)
class Case:
    """One pair, on one runtime, under one load: all that a rule may look at.

    ``target`` and ``drafter`` are what the catalogue says; the checkpoints are what lies there,
    when somebody has read it. ``settings`` are vLLM's arguments without the dashes, such as
    ``enable-prefix-caching``, as ``speculative_settings`` are keys of ``--speculative-config``
    beside the drafter's own; ``environment`` is the container's. ``None``: not known, not asked.

    ``own_target``: the target was read where the user said, not at the catalogue's own place.
    ``instance_type`` is what was asked for, ``instance`` its entry in the catalogue, if it has
    one. Where there is an instance, an ``ami`` of ``None`` is SageMaker's default.
    """

    target: Target
    drafter: Drafter | None
    k: int
    max_model_len: int
    runtime: Runtime
    runtimes: RuntimeTable
    instances: InstanceTable
    version_rules: VersionRuleTable = NO_VERSION_RULES
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


class Known(TypedDict, total=False):
    """What else may be known of a case, in the words of ``Case``."""

    concurrency: int | None
    target_checkpoint: Checkpoint | None
    own_target: bool
    drafter_checkpoint: Checkpoint | None
    region: str | None
    image: str | None
    ami: str | None
    tensor_parallel_size: int
    on_cpu: bool
    settings: Mapping[str, Value]
    speculative_settings: Mapping[str, object]
    environment: Mapping[str, str]


def make_case(
    catalog: Catalog,
    target: Target,
    drafter: Drafter | None,
    *,
    k: int | None = None,
    max_model_len: int | None = None,
    vllm: str | None = None,
    instance_type: str | None = None,
    **known: Unpack[Known],
) -> Case:
    """The case of this pair. What is left out is the catalogue's choice, or not known.

    A version without an image in the catalogue and an unknown instance type are not refused here:
    rules do that, with the nearest good one. Raises UserError for what is no version.
    """
    return Case(
        target=target,
        drafter=drafter,
        k=k if k is not None else drafter.k_recommended if drafter else 0,
        max_model_len=max_model_len or target.default_max_model_len,
        runtime=runtime_of(catalog.runtimes, vllm),
        runtimes=catalog.runtimes,
        instances=catalog.instances,
        version_rules=catalog.version_rules,
        instance=_instance(catalog.instances, instance_type),
        instance_type=instance_type,
        **known,
    )


def runtime_of(table: RuntimeTable, vllm: str | None) -> Runtime:
    """The runtime of this version (``None``: the default), made up where the table has none.

    Raises UserError for what is no version.
    """
    version = versions.normalise(vllm or table.default)
    known = {versions.normalise(runtime.vllm): runtime for runtime in table.runtimes}
    usual = known[versions.normalise(table.default)]
    made_up = {"vllm": version, "tag": "", "regions": (), "cpu": "untried", "cpu_note": None,
               "streamer": None}  # fmt: skip
    return known.get(version) or usual.model_copy(update=made_up)


def nearest_version(version: str, known: Iterable[str]) -> str:
    """Of the versions ``known`` the one to take instead of ``version``: the newest of its own
    minor version, else the oldest that is newer, else the newest."""
    ordered = sorted(known, key=versions.parse)
    family = [name for name in ordered if versions.parse(name)[:2] == versions.parse(version)[:2]]
    newer = [name for name in ordered if versions.compare(name, version) > 0]
    return (family or newer[:1] or ordered)[-1]


def ami_for(table: RuntimeTable, runtime: Runtime, instance_type: str) -> str | None:
    """The host AMI that a request must name for this image; ``None`` leaves it to SageMaker.

    The image needs a driver that is new enough, which the default AMI of some families lacks: the
    rule of AWS's SDK (sagemaker.serve, model_builder_servers.py).
    """
    return runtime.ami if family_of(instance_type) in table.ami_families else None


def family_of(instance_type: str) -> str:
    """``g6e`` of ``ml.g6e.xlarge``; empty for what is no instance type."""
    parts = instance_type.split(".")
    return parts[1] if len(parts) == 3 else ""


def _instance(table: InstanceTable, instance_type: str | None) -> Instance | None:
    return next((entry for entry in table.instances if entry.type == instance_type), None)
