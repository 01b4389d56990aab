"""Turns the options of ``peagle fit`` into a Case and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from peagle.case import Case, CaseOptions, Checkpoints, build_case
from peagle.catalog import find_instance
from peagle.catalog.schema import Catalog, Drafter, Pair, Target
from peagle.checkpoints.division import division_problem, divisions
from peagle.checkpoints.entries import (
    drafter_from_checkpoint,
    own_drafter,
    target_from_checkpoint,
)
from peagle.checkpoints.models import ReadCheckpoint
from peagle.errors import Fix, OptionMissing, OptionsConflict, UserError
from peagle.fit.advice import MAX_GPUS
from peagle.fit.building import fit_case, gpu_of, gpu_with_memory, located
from peagle.fit.estimate import fit_of, missing_bytes
from peagle.fit.models import FitCase
from peagle.vllm.environment import Value
from peagle_serve.heads import is_head

_CONTRADICTIONS = (
    ("k", "no_speculation"),
    ("drafter", "no_speculation"),
    ("drafter_embeddings", "no_speculation"),
    ("enforce_eager", "compiled"),
)

_ENGINE_SETTINGS = (
    "kv_cache_dtype", "max_num_batched_tokens", "gpu_memory_utilization", "enforce_eager",
)  # fmt: skip
"""Options that are also settings of the case and fields of EngineConfig."""


@dataclass(frozen=True)
class FitRequest:
    """The options of ``peagle fit``, each named as on its command line.

    ``settings`` are further arguments of vLLM; ``None`` leaves one of the catalogue out.
    ``drafter_embeddings`` is ``shared``, ``own``, or ``None`` to read it from the headers.
    """

    pair: str | None = None
    gpu_memory_gib: float | None = None
    instance_type: str | None = None
    tp: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    k: int | None = None
    kv_cache_dtype: str | None = None
    no_speculation: bool = False
    text_only: bool = False
    enforce_eager: bool = False
    compiled: bool = False
    vllm: str | None = None
    target: str | None = None
    drafter: str | None = None
    drafter_embeddings: str | None = None
    settings: Mapping[str, Value | None] = field(default_factory=dict)


@dataclass(frozen=True)
class FitInputs:
    """The inputs that do not change between options: catalogue, pair and checkpoints."""

    catalog: Catalog
    pair: Pair | None
    read: Checkpoints

    def cases(self, request: FitRequest) -> tuple[Case, FitCase]:
        """The case, with the engine settings that the memory model used, and its memory."""
        if request.gpu_memory_gib is None:
            gpu = gpu_of(find_instance(self.catalog.instances, str(request.instance_type)))
        else:
            gpu = gpu_with_memory(self.catalog.instances, request.gpu_memory_gib)
        target = self._target()
        drafter = None if request.no_speculation else self._drafter(target)
        read = replace(self.read, drafter=None) if drafter is None else self.read
        given = {name: getattr(request, name) for name in _ENGINE_SETTINGS}
        longest = (
            target_from_checkpoint(read.target).architecture if read.target else target.architecture
        )
        default = min(target.default_max_model_len, longest.max_positions)
        options = CaseOptions(
            k=request.k,
            max_model_len=request.max_model_len or default,
            concurrency=request.max_num_seqs,
            vllm=request.vllm,
            instance_type=request.instance_type,
            settings={
                **request.settings,
                **_as_settings({name: value for name, value in given.items() if value}),
            },
        )
        case = build_case(self.catalog, target, drafter, options, read, gpu.instance)
        fitted = fit_case(
            case,
            gpu,
            own_matrices={"own": True, "shared": False}.get(request.drafter_embeddings or ""),
            text_only=request.text_only,
            compiled=request.compiled,
        )
        fitted = _on_gpus(fitted, request)
        engine = fitted.engine
        used = _as_settings({name: getattr(engine, name) for name in _ENGINE_SETTINGS})
        size, settings = engine.tensor_parallel_size, {**case.settings, **used}
        return replace(case, tensor_parallel_size=size, settings=settings), fitted

    def _target(self) -> Target:
        if self.pair is not None:
            return self.pair.target
        assert self.read.target is not None
        with located(self.read.target):
            return target_from_checkpoint(self.read.target)

    def _drafter(self, target: Target) -> Drafter | None:
        named, head = self.pair.drafter if self.pair else None, self.read.drafter
        if head is None:
            return named
        kinds = [drafter for drafter in target.drafters if drafter.method == "eagle3"]
        with located(head):
            if not kinds:
                return drafter_from_checkpoint(head)
            kind = next((kind for kind in kinds if kind == named), kinds[0])
            return own_drafter(head.location, target, kind, head)


def _as_settings(values: Mapping[str, Any]) -> dict[str, Value]:
    return {name.replace("_", "-"): value for name, value in values.items()}


def read_checkpoints(request: FitRequest, read: ReadCheckpoint) -> Checkpoints:
    """The checkpoints at the locations that the request names."""
    target = read(request.target) if request.target else None
    if target is not None and is_head(target.config):
        raise UserError(
            f"--target {target.location} holds a draft head, not a model",
            "pass it with --drafter, and its target model with --target",
            code="head-not-a-target",
        )
    if target is None and request.pair is None:
        raise OptionMissing("specify PAIR, or a folder with --target",
                        Fix("for example", ("peagle", "fit", "tiny")))  # fmt: skip
    drafter = read(request.drafter) if request.drafter else None
    return Checkpoints(target, drafter, own_target=target is not None)


def _on_gpus(case: FitCase, request: FitRequest) -> FitCase:
    """The case on the GPUs of the request, else on the fewest that fit."""
    size, instance_type = request.tp, request.instance_type
    most = case.engine.gpu_count if instance_type or not size else MAX_GPUS
    shape, whole = case.target.architecture, case.engine.expert_parallel
    sizes = divisions(shape, most, whole)
    if size:
        fix = f"use {', '.join(map(str, sizes))}"
        if size > most:
            gpus = f"{most} GPU{'s' if most > 1 else ''}"
            raise UserError(
                f"{instance_type or 'the largest machine'} has {gpus}, fewer than --tp {size}",
                f"{fix}, or a larger type" if instance_type else fix,
                code="tensor-parallel",
            )
        if size not in sizes:
            raise UserError(
                division_problem(shape, size, whole)
                or f"--tp {size} does not divide the target's attention heads",
                fix,
                code="tensor-parallel",
            )
        return _on(case, size)
    cases = [_on(case, size) for size in sizes]
    fitting = (case for case in cases if fit_of(case).fits)
    # If something other than memory prevents the fit, more GPUs do not help.
    enough = (case for case in cases if not missing_bytes(case))
    return next(fitting, None) or next(enough, cases[-1])


def _on(case: FitCase, size: int) -> FitCase:
    count = max(case.engine.gpu_count, size)
    return replace(case, engine=replace(case.engine, tensor_parallel_size=size, gpu_count=count))


def refuse_contradictions(request: FitRequest, pair: Pair | None) -> None:
    """Raise UserError for options that cannot be combined, and for missing hardware."""
    for first, second in _CONTRADICTIONS:
        if getattr(request, first) and getattr(request, second):
            raise OptionsConflict(
                f"{_flag(first)} and {_flag(second)} cannot be combined", "use one of the two"
            )
    named = request.drafter or (pair and pair.drafter) or request.no_speculation
    if not named and request.target:
        for name in ("k", "drafter_embeddings"):
            if getattr(request, name):
                raise OptionMissing(
                    f"{_flag(name)} needs a drafter, but none is given",
                    "add --drafter with its location",
                )
    if request.instance_type is None and request.gpu_memory_gib is None:
        raise OptionMissing(
            "specify the hardware with --gpu-memory-gib or --instance-type",
            "for example: --instance-type ml.g7e.2xlarge",
        )
    if request.instance_type is not None and request.gpu_memory_gib is not None:
        raise OptionsConflict(
            "--gpu-memory-gib and --instance-type both specify the GPU", "use one of the two"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
