"""Numbers that ``peagle fit`` is given, and options of it that contradict each other.

From the options of ``peagle fit`` to the case that the arithmetic looks at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import click

from peagle.catalog import find_instance
from peagle.catalog.schema import Catalog, Drafter, Pair
from peagle.catalog.tables import Instance
from peagle.checkpoints import Checkpoint
from peagle.checkpoints.heads import is_head
from peagle.cli.locations import checkpoint_at
from peagle.errors import CheckpointError, UserError
from peagle.fit.advice import MOST_GPUS, divisions
from peagle.fit.building import draft_model, read_drafter, read_target, target_model, with_matrices
from peagle.fit.estimate import fit_of, is_multimodal, missing_bytes
from peagle.fit.models import DraftModel, FitCase, TargetModel
from peagle.planning.engine_settings import engine_settings
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION, EngineConfig, batch_of
from peagle.vllm.environment import Value
from peagle.vllm.gpus import seen_of, visible_gib
from peagle.vllm.versions import normalise

MOST_GIB = 2048
"""No GPU has as much memory; a number above it was meant in another unit."""

_CONTRADICTIONS = (
    ("k", "no_speculation"),
    ("drafter", "no_speculation"),
    ("drafter_embeddings", "no_speculation"),
    ("enforce_eager", "compiled"),
)


def gib(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Memory of one GPU in GiB, from 1 to ``MOST_GIB``. Raises BadParameter."""
    if value is None or (math.isfinite(value) and 1 <= value <= MOST_GIB):
        return value
    if not math.isfinite(value) or value < 1:
        raise click.BadParameter(f"{value} is no GPU's memory in GiB")
    hint = f"; MiB? then {value / 1024:.1f}" if value >= 4 * 1024 else ""
    raise click.BadParameter(f"{value:g} GiB is more than any GPU has{hint}")


def share(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """A share above 0, and 1 at most. Raises BadParameter."""
    if value is None or 0 < value <= 1:
        return value
    hint = f"; write {value / 100:g}" if 1 < value <= 100 else ""
    raise click.BadParameter(f"{value:g} is not a share above 0 and up to 1{hint}")


def refuse_contradictions(given: dict[str, Any], drafts: bool) -> None:
    """Raise UserError for options that cannot both be meant. ``drafts``: whether anything was
    named that drafts."""
    for first, second in _CONTRADICTIONS:
        if given[first] and given[second]:
            raise UserError(
                f"{_flag(first)} and {_flag(second)} contradict each other", "give one of the two"
            )
    for name in ("k", "drafter_embeddings"):
        if given[name] and not drafts:
            raise UserError(
                f"{_flag(name)} is about a drafter, and none is named", "add --drafter PLACE"
            )
    if given["instance_type"] is None and given["gpu_memory_gib"] is None:
        raise UserError(
            "give either --gpu-memory-gib or --instance-type",
            "for example: --instance-type ml.g7e.2xlarge",
        )
    if given["instance_type"] is not None and given["gpu_memory_gib"] is not None:
        raise UserError(
            "--gpu-memory-gib and --instance-type both say which GPU it is", "give one of the two"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


HARDWARE_HELP = "Memory of one GPU as CUDA sees it, such as 139.8 for an H200."

_K = 5
"""K for a head that nobody describes: P-EAGLE's cards have 5 and more."""


@dataclass(frozen=True)
class Places:
    """What lies at the places that were named; ``None`` where none was."""

    target: Checkpoint | None
    drafter: Checkpoint | None


def read_places(given: dict[str, Any]) -> Places:
    """Reads what ``--target`` and ``--drafter`` name. Raises what reading raises."""
    target, drafter = (
        checkpoint_at(given[name]) if given[name] else None for name in ("target", "drafter")
    )
    if target is not None and is_head(target.config):
        raise UserError(
            f"--target {target.location} holds a draft head, not a model",
            "give it as --drafter, and the model that it drafts for as --target",
        )
    return Places(target, drafter)


def case_of(catalog: Catalog, pair: Pair | None, places: Places, given: dict[str, Any]) -> FitCase:
    """The pair, or what lies at the places named, on the hardware named.

    Raises UserError for a division among GPUs that cannot be.
    """
    target = _target(pair, places)
    drafter = _drafter(pair, places, target, given)
    engine = _engine(catalog, pair, given, _length(pair, target, given))
    engine = replace(
        engine,
        images=engine.images and not lacks_processor(places, target),
        k=_k(pair, drafter, given) if _speculates(pair, drafter, given) else 0,
        draftless=_draftless(pair, drafter, given),
    )
    return _divided(FitCase(target, drafter, engine), given)


def lacks_processor(places: Places, target: TargetModel) -> bool:
    """Whether the target would take images, and lies in a folder with which vLLM cannot."""
    read = places.target
    return read is not None and not read.takes_media and is_multimodal(target)


def _target(pair: Pair | None, places: Places) -> TargetModel:
    if places.target:
        try:
            return read_target(places.target)
        except CheckpointError as wrong:
            raise _located(wrong, places.target) from wrong
    if pair is None:
        raise UserError("name a pair, or a folder with --target", "for example: peagle fit tiny")
    return target_model(pair.target)


def _located(wrong: CheckpointError, read: Checkpoint) -> CheckpointError:
    """The same error, with the place whose config.json it is about."""
    return CheckpointError(f"{read.location}: {wrong.message}", wrong.fix)


def _drafter(
    pair: Pair | None, places: Places, target: TargetModel, given: dict[str, Any]
) -> DraftModel | None:
    if given["no_speculation"]:
        return None
    own = {"own": True, "shared": False, None: None}[given["drafter_embeddings"]]
    if places.drafter:
        try:
            return read_drafter(places.drafter, target, own)
        except CheckpointError as wrong:
            raise _located(wrong, places.drafter) from wrong
    if pair is None or pair.drafter is None:
        return None
    drafter = draft_model(pair.drafter, target)
    return with_matrices(drafter, own) if drafter else None


def _speculates(pair: Pair | None, drafter: DraftModel | None, given: dict[str, Any]) -> bool:
    return drafter is not None or _draftless(pair, drafter, given) is not None


def _draftless(pair: Pair | None, drafter: DraftModel | None, given: dict[str, Any]) -> str | None:
    """The method of a drafter without a model, such as ``ngram``."""
    if given["no_speculation"] or drafter is not None or pair is None or pair.drafter is None:
        return None
    return pair.drafter.method


def _k(pair: Pair | None, drafter: DraftModel | None, given: dict[str, Any]) -> int:
    if given["k"]:
        return int(given["k"])
    entry: Drafter | None = pair.drafter if pair else None
    return entry.k_recommended if entry else _K


def _length(pair: Pair | None, target: TargetModel, given: dict[str, Any]) -> int:
    """The context: as asked, the catalogue's, or, as vLLM takes it, all that the model has."""
    most = target.architecture.max_positions
    usual = min(pair.target.default_max_model_len, most) if pair else most
    return int(given["max_model_len"] or usual)


def _engine(
    catalog: Catalog, pair: Pair | None, given: dict[str, Any], length: int
) -> EngineConfig:
    """The hardware, and what vLLM is told or takes by itself."""
    vllm = normalise(given["vllm"] or catalog.runtimes.default)
    on, memory = instance_of(catalog, given), given["gpu_memory_gib"]
    if memory is None:
        visible = visible_gib(on.gpu, on.gpu_memory_mib)
        driver = on.gpu_memory_mib / 1024 - visible
    else:
        visible = seen_of(memory, on.gpu)
        driver = memory - visible
    settings = _settings(pair, on, vllm, given)
    tokens = given["max_num_batched_tokens"] or settings.get("max-num-batched-tokens")
    asked = given["max_num_seqs"], int(tokens) if tokens else None
    seqs, tokens = batch_of(on.gpu, visible, vllm, length, asked)
    return EngineConfig(
        gpu=on.gpu,
        gpu_count=on.gpu_count if memory is None else 1,
        gpu_memory_gib=visible,
        driver_gib=driver,
        capability=on.capability,
        vllm=vllm,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        gpu_memory_utilization=given["gpu_memory_utilization"]
        or float(settings.get("gpu-memory-utilization", GPU_MEMORY_UTILIZATION)),
        kv_cache_dtype=given["kv_cache_dtype"] or str(settings.get("kv-cache-dtype", "auto")),
        enforce_eager=given["enforce_eager"] or bool(settings.get("enforce-eager")),
        compiled=given["compiled"],
        images=not given["text_only"],
    )


def _settings(
    pair: Pair | None, on: Instance, vllm: str, given: dict[str, Any]
) -> dict[str, Value]:
    """The catalogue's arguments for this pair on this GPU."""
    if pair is None:
        return {}
    drafter = None if given["no_speculation"] else pair.drafter
    settings = engine_settings(pair.target, drafter, on.gpu_architecture, vllm)
    return {name: setting.value for name, setting in settings.items()}


def instance_of(catalog: Catalog, given: Mapping[str, Any]) -> Instance:
    """The instance type that was named, else one with the GPU whose memory is nearest; of two such
    GPUs the newer."""
    memory = given["gpu_memory_gib"]
    if memory is None:
        return find_instance(catalog.instances, given["instance_type"])
    return min(
        catalog.instances.instances,
        key=lambda on: (
            min(
                abs(memory - on.gpu_memory_mib / 1024),
                abs(memory - visible_gib(on.gpu, on.gpu_memory_mib)),
            ),
            -on.capability,
        ),
    )


def _divided(case: FitCase, given: dict[str, Any]) -> FitCase:
    """The case over as many GPUs as asked; on an instance, else over as few as fit."""
    asked, on = given["tp"], given["instance_type"]
    most = case.engine.gpu_count if on or not asked else MOST_GPUS
    sizes = divisions(case.target.architecture, most)
    if asked:
        _refuse_division(asked, sizes, case.engine.gpu_count if on else MOST_GPUS, on)
        return _over(case, asked)
    over = [_over(case, size) for size in sizes]
    fitting = (case for case in over if fit_of(case).fits)
    # Where not memory is what lacks, more GPUs do not help.
    enough = (case for case in over if not missing_bytes(case))
    return next(fitting, None) or next(enough, over[-1])


def _refuse_division(asked: int, sizes: list[int], most: int, on: str | None) -> None:
    """Raise UserError unless the model can be divided among so many of the ``most`` GPUs."""
    can = f"use {', '.join(map(str, sizes))}"
    if asked > most:
        gpus = f"{most} GPU{'s' if most > 1 else ''}"
        who = f"{on} has {gpus}" if on else f"the largest machine has {gpus}"
        raise UserError(
            f"{who}, fewer than --tp {asked}", f"{can}, or a larger type" if on else can
        )
    if asked not in sizes:
        raise UserError(f"--tp {asked} does not divide the target's attention heads", can)


def _over(case: FitCase, size: int) -> FitCase:
    engine = case.engine
    count = max(engine.gpu_count, size)
    return replace(case, engine=replace(engine, tensor_parallel_size=size, gpu_count=count))
