"""``peagle fit``: the memory of one GPU, the cost of speculation, and changes that make a pair fit.

The findings are those of ``peagle check`` that concern memory: an estimate for a pair that cannot
run is worthless.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from peagle.case import Case, CaseOptions, Checkpoints, build_case
from peagle.catalog import find_instance, find_pair, pair_name
from peagle.catalog.schema import Catalog, Drafter, Pair, Target
from peagle.checkpoints.architecture import read_quantization
from peagle.checkpoints.division import division_problem, divisions
from peagle.checkpoints.entries import (
    drafter_from_checkpoint,
    own_drafter,
    target_from_checkpoint,
)
from peagle.checkpoints.models import ReadCheckpoint
from peagle.checks import About, check
from peagle.errors import Fix, OptionMissing, OptionsConflict, UserError
from peagle.findings import Finding, errors, note, severity, warning
from peagle.fit.advice import MAX_GPUS, advise
from peagle.fit.building import fit_case, gpu_of, gpu_with_memory, lacks_processor, located
from peagle.fit.estimate import (
    compare,
    fit_of,
    is_multimodal,
    missing_bytes,
    refusal_reason,
    unknown_quantization,
)
from peagle.fit.models import Advice, Comparison, Fit, FitCase
from peagle.vllm.defaults import schedules_ahead
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

_ABOUT_THE_GPU = ("gpu-too-old", "gpu-too-new")
"""Rules about hardware that concern the GPU itself; images and AMIs do not change its memory."""

_QUANTIZED = "quantization-estimated"

_SETTINGS = (
    "vllm", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "kv_cache_dtype", "k",
)  # fmt: skip
"""Fields of EngineConfig in the JSON document."""


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
class FitReport:
    """The fit, the case without speculation, the reason for a refusal, advice and findings.

    ``instance_type`` is ``None`` if the GPU was selected by its memory.
    """

    pair: str
    planned: bool
    request: FitRequest
    case: FitCase
    fit: Fit
    without_speculation: Comparison | None
    refusal: str | None
    advice: tuple[Advice, ...]
    findings: tuple[Finding, ...]

    def __repr__(self) -> str:
        summary = self.refusal or f"the cache holds {self.fit.kv_cache_tokens:,} tokens"
        return f"<FitReport {self.pair} on {self.fit.gpu}: {summary}>"

    @property
    def instance_type(self) -> str | None:
        """The instance type of the request."""
        return self.request.instance_type


def fit(request: FitRequest, catalog: Catalog, read: ReadCheckpoint) -> FitReport:
    """The memory report for this request.

    ``read`` reads the locations that it names. Raises NotFound, UserError and CheckpointError.
    """
    pair = find_pair(catalog, request.pair) if request.pair is not None else None
    _refuse_contradictions(request, pair)
    inputs = _Inputs(catalog, pair, _read_checkpoints(request, read))
    case, fitted = inputs.cases(request)
    refusal = refusal_reason(fitted)
    memory = fit_of(fitted)
    if pair is None:
        title = f"{request.target}+{request.drafter}" if fitted.drafter else str(request.target)
    else:
        title = pair_name(pair.target, None if request.no_speculation else pair.drafter)
    return FitReport(
        pair=title,
        planned=pair is not None,
        request=request,
        case=fitted,
        fit=memory,
        without_speculation=compare(fitted, memory),
        refusal=refusal,
        advice=_advice(inputs, request, fitted) if refusal else (),
        findings=_findings(request, case, fitted),
    )


def fit_document(report: FitReport) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    engine, without = report.case.engine, report.without_speculation
    return {
        "pair": report.pair,
        **report.fit.model_dump(),
        "instance_type": report.instance_type,
        "gpu_guessed": report.instance_type is None,
        "settings": {
            **{name: getattr(engine, name) for name in _SETTINGS},
            "async_scheduling": schedules_ahead(engine, report.case.drafter),
        },
        "without_speculation": without.model_dump() if without else None,
        "refusal": report.refusal,
        "advice": [advice.model_dump() for advice in report.advice],
        "findings": [finding.model_dump() for finding in report.findings],
    }


def _advice(inputs: _Inputs, request: FitRequest, fitted: FitCase) -> tuple[Advice, ...]:
    """Changes that make the case fit, each computed as if the option were given.

    Options that contradict others, or that a rule about load or version rejects, are left out.
    """

    def changed(setting: str, value: object) -> FitCase | None:
        change: dict[str, Any] = {setting.replace("-", "_"): True if value == setting else value}
        if setting == "instance-type":
            change["gpu_memory_gib"] = None
        changed_request = replace(request, **change)
        try:
            _refuse_contradictions(changed_request, inputs.pair)
            case, changed_case = inputs.cases(changed_request)
        except UserError:
            return None
        findings = _of_rules(case, changed_case, ("load",))
        return None if any(finding.level == "error" for finding in findings) else changed_case

    most = fitted.engine.gpu_count if request.instance_type else MAX_GPUS
    return advise(fitted, changed, inputs.catalog.instances, most)


def _findings(request: FitRequest, case: Case, fitted: FitCase) -> tuple[Finding, ...]:
    """Errors and warnings about target, head and load, errors about versions and the GPU.

    A version's warnings concern what is served, not memory.
    """
    findings = _of_rules(case, fitted, ("target", "head", "load"))
    findings += [*_about_images(request, case, fitted), *_quantized(case)]
    return tuple(sorted(findings, key=severity))


def _of_rules(case: Case, fitted: FitCase, subjects: Sequence[About]) -> list[Finding]:
    """Errors and warnings about the subjects, and errors about versions and the GPU.

    ``refusal_reason`` reports a step that is too small for the drafts more precisely than
    drafting-slots.
    """
    on_gpu, engine = case, fitted.engine
    if case.instance is None:
        # The rules about versions look at an instance type with the GPU of the memory estimate.
        alike = (
            instance
            for instance in case.instances.instances
            if (instance.gpu, instance.capability) == (engine.gpu, engine.capability)
        )
        on_gpu = replace(case, instance=next(alike, None))
    findings = [
        finding
        for subject in subjects
        for finding in check(case, about=subject)
        if finding.level != "note" and (finding.code, finding.level) != ("drafting-slots", "error")
    ]
    findings += errors(check(on_gpu, about="version"))
    return findings + errors(check(case, only=_ABOUT_THE_GPU))


def _about_images(request: FitRequest, case: Case, fitted: FitCase) -> Iterator[Finding]:
    """Notes on options and files that decide whether the engine takes images."""
    read = case.target_checkpoint
    if request.text_only:
        if not is_multimodal(fitted.target):
            message = "the target does not accept images; --text-only has no effect"
            yield note("text-only-unneeded", "--text-only", message, "leave it out")
    elif read is not None and lacks_processor(read, fitted.target):
        message = (
            "no preprocessor_config.json next to the target's config.json, so vLLM cannot take "
            "images: estimated for text only"
        )
        fix = "add the file to estimate with images"
        yield note("text-only-assumed", "--target", message, fix)


def _quantized(case: Case) -> Iterator[Finding]:
    """Warnings about weights whose sizes are those of their files, not those that vLLM allocates.

    Heads are counted with 16 bits per number.
    """
    target, head = case.target_checkpoint, case.drafter_checkpoint
    kind = unknown_quantization(target) if target else None
    if kind:
        by = "at their stored size" if target and target.tensors else "by the bits of config.json"
        message = f"weights quantized with {kind} are counted {by}"
        fix = "plan for more memory: vLLM may repack the weights"
        yield warning(_QUANTIZED, "target", message, fix)
    kind = read_quantization(head.config) if head else None
    if kind:
        message = f"the head is quantized with {kind} and counted with 16 bits per number"
        fix = "the head may need less memory than shown"
        yield warning(_QUANTIZED, "drafter", message, fix)


@dataclass(frozen=True)
class _Inputs:
    """The inputs that do not change between options: catalogue, pair and checkpoints."""

    catalog: Catalog
    pair: Pair | None
    read: Checkpoints

    def cases(self, request: FitRequest) -> tuple[Case, FitCase]:
        """The case, with the engine settings that the memory model used, and its memory."""
        instances = self.catalog.instances
        if request.gpu_memory_gib is None:
            gpu = gpu_of(find_instance(instances, str(request.instance_type)))
        else:
            gpu = gpu_with_memory(instances, request.gpu_memory_gib)
        read, target = self.read, self.pair.target if self.pair else None
        longest = target
        if read.target is not None:
            with located(read.target):
                longest = target_from_checkpoint(read.target)
        assert longest is not None
        target = target or longest
        drafter = None if request.no_speculation else self._drafter(target)
        most = longest.architecture.max_positions
        settings = dict(request.settings)
        for name in _ENGINE_SETTINGS:
            if value := getattr(request, name):
                settings[name.replace("_", "-")] = value
        options = CaseOptions(
            k=request.k,
            max_model_len=request.max_model_len or min(target.default_max_model_len, most),
            concurrency=request.max_num_seqs,
            vllm=request.vllm,
            instance_type=request.instance_type,
            settings=settings,
        )
        if drafter is None:
            read = replace(read, drafter=None)
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
        used = {name.replace("_", "-"): getattr(engine, name) for name in _ENGINE_SETTINGS}
        size, planned = engine.tensor_parallel_size, {**case.settings, **used}
        return replace(case, tensor_parallel_size=size, settings=planned), fitted

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


def _read_checkpoints(request: FitRequest, read: ReadCheckpoint) -> Checkpoints:
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


def _refuse_contradictions(request: FitRequest, pair: Pair | None) -> None:
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
