"""What rules look at. Data without behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.catalog.models import Drafter, Target, Value
from toolkit.catalog.tables import (
    NO_VERSION_RULES,
    Instance,
    InstanceTable,
    Runtime,
    RuntimeTable,
    VersionRuleTable,
)
from toolkit.checkpoints.models import Checkpoint


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
