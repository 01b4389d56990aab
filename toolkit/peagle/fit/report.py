"""``peagle fit``: the memory of one GPU, the cost of speculation, and changes that make a pair fit.

The findings are those of ``peagle check`` that concern memory: an estimate for a pair that cannot
run is worthless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.case import Case
from peagle.catalog import find_pair, pair_name
from peagle.catalog.schema import Catalog, Pair
from peagle.checkpoints.architecture import read_quantization
from peagle.checkpoints.models import ReadCheckpoint
from peagle.checks import About, check
from peagle.errors import UserError
from peagle.findings import Finding, note, severity, warning
from peagle.fit.advice import MAX_GPUS, advise
from peagle.fit.building import lacks_processor
from peagle.fit.estimate import compare, fit_of, is_multimodal, refusal_reason, unknown_quantization
from peagle.fit.models import Advice, Comparison, Fit, FitCase
from peagle.fit.request import (
    FitInputs,
    FitRequest,
    read_checkpoints,
    refuse_contradictions,
)
from peagle.vllm.defaults import schedules_ahead

_ABOUT_THE_GPU = ("gpu-too-old", "gpu-too-new")
"""Rules about hardware that concern the GPU itself; images and AMIs do not change its memory."""

_QUANTIZED = "quantization-estimated"

_SETTINGS = (
    "vllm", "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "kv_cache_dtype", "k",
)  # fmt: skip
"""Fields of EngineConfig in the JSON document."""


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
        result = self.refusal or f"the cache holds {self.fit.kv_cache_tokens:,} tokens"
        return f"<FitReport {self.pair} on {self.fit.gpu}: {result}>"

    @property
    def instance_type(self) -> str | None:
        """The instance type of the request."""
        return self.request.instance_type


def fit(request: FitRequest, catalog: Catalog, read: ReadCheckpoint) -> FitReport:
    """The memory report for this request.

    ``read`` reads the locations that it names. Raises NotFound, UserError and CheckpointError.
    """
    pair = find_pair(catalog, request.pair) if request.pair is not None else None
    refuse_contradictions(request, pair)
    inputs = FitInputs(catalog, pair, read_checkpoints(request, read))
    case, fitted = inputs.cases(request)
    refusal = refusal_reason(fitted)
    memory = fit_of(fitted)
    return FitReport(
        pair=_title(request, pair, fitted),
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


def _title(request: FitRequest, pair: Pair | None, case: FitCase) -> str:
    if pair is None:
        return f"{request.target}+{request.drafter}" if case.drafter else str(request.target)
    return pair.target.id if request.no_speculation else pair_name(pair.target, pair.drafter)


def _advice(inputs: FitInputs, request: FitRequest, fitted: FitCase) -> tuple[Advice, ...]:
    """Changes that make the case fit, each computed as if the option were given.

    Options that contradict others, or that a rule about load or version rejects, are left out.
    """

    def changed(setting: str, value: object) -> FitCase | None:
        change: dict[str, Any] = {setting.replace("-", "_"): True if value == setting else value}
        if setting == "instance-type":
            change["gpu_memory_gib"] = None
        changed_request = replace(request, **change)
        try:
            refuse_contradictions(changed_request, inputs.pair)
            case, changed_case = inputs.cases(changed_request)
        except UserError:
            return None
        found = _of_rules(case, changed_case, ("load",))
        return None if any(finding.level == "error" for finding in found) else changed_case

    most = fitted.engine.gpu_count if request.instance_type else MAX_GPUS
    return advise(fitted, changed, inputs.catalog.instances, most)


def _findings(request: FitRequest, case: Case, fitted: FitCase) -> tuple[Finding, ...]:
    """Errors and warnings about target, head and load, errors about versions and the GPU.

    A version's warnings concern what is served, not memory.
    """
    found = _of_rules(case, fitted, ("target", "head", "load"))
    found += _about_images(request, case, fitted)
    found += _quantized(case)
    return tuple(sorted(found, key=severity))


def _of_rules(case: Case, fitted: FitCase, subjects: Sequence[About]) -> list[Finding]:
    """Errors and warnings about the subjects, and errors about versions and the GPU.

    ``refusal_reason`` reports a step that is too small for the drafts more precisely than
    drafting-slots.
    """
    found = [
        finding
        for subject in subjects
        for finding in check(case, about=subject)
        if finding.level != "note" and (finding.code, finding.level) != ("drafting-slots", "error")
    ]
    found += (f for f in check(_on_its_gpu(case, fitted), about="version") if f.level == "error")
    found += (f for f in check(case, only=_ABOUT_THE_GPU) if f.level == "error")
    return found


def _on_its_gpu(case: Case, fitted: FitCase) -> Case:
    """The case on an instance type with the GPU of the memory estimate."""
    if case.instance is not None:
        return case
    engine = fitted.engine
    on = (i for i in case.instances.instances if i.gpu == engine.gpu)
    return replace(case, instance=next((i for i in on if i.capability == engine.capability), None))


def _about_images(request: FitRequest, case: Case, fitted: FitCase) -> list[Finding]:
    """Notes on options and files that decide whether the engine takes images."""
    if request.text_only:
        if is_multimodal(fitted.target):
            return []
        message = "the target does not accept images; --text-only has no effect"
        return [note("text-only-unneeded", "--text-only", message, "leave it out")]
    if case.target_checkpoint is None or not lacks_processor(case.target_checkpoint, fitted.target):
        return []
    message = (
        "no preprocessor_config.json next to the target's config.json, so vLLM cannot take images: "
        "estimated for text only"
    )
    fix = "add the file to estimate with images"
    return [note("text-only-assumed", "--target", message, fix)]


def _quantized(case: Case) -> list[Finding]:
    """Warnings about weights whose sizes are those of their files, not those that vLLM allocates.

    Heads are counted with 16 bits per number.
    """
    found, target, head = [], case.target_checkpoint, case.drafter_checkpoint
    kind = unknown_quantization(target) if target else None
    if kind:
        by = "at their stored size" if target and target.tensors else "by the bits of config.json"
        message = f"weights quantized with {kind} are counted {by}"
        found.append(
            warning(
                _QUANTIZED, "target", message, "plan for more memory: vLLM may repack the weights"
            )
        )
    kind = read_quantization(head.config) if head else None
    if kind:
        message = f"the head is quantized with {kind} and counted with 16 bits per number"
        found.append(
            warning(_QUANTIZED, "drafter", message, "the head may need less memory than shown")
        )
    return found
