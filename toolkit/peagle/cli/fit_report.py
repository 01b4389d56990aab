"""What the checks have to say of a case of ``peagle fit``: the sum of a wrong pair is right and
worthless.

What ``peagle fit`` reports, and how it comes by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.case import Case
from peagle.catalog import find_pair, pair_name
from peagle.catalog.schema import Catalog, Pair
from peagle.checkpoints.architecture import read_quantization
from peagle.checks import check
from peagle.checks.facts import stranger
from peagle.checks.registry import About
from peagle.cli.fit_asked import Question, asked, on_assumed_gpu
from peagle.cli.fit_case import Places, case_of, lacks_processor, read_places, refuse_contradictions
from peagle.errors import UserError
from peagle.findings import Finding, note, warning
from peagle.fit.advice import MOST_GPUS, advise
from peagle.fit.estimate import compare, fit_of, is_multimodal, unknown_quantization, why_not
from peagle.fit.models import Advice, Comparison, Fit, FitCase
from peagle.planning.drafter import split_revision
from peagle.planning.engine_settings import GPU_MEMORY_UTILIZATION
from peagle.planning.limits import USUAL_CONCURRENCY
from peagle.vllm.defaults import schedules_ahead

_ABOUT_THE_GPU = ("gpu-too-old", "gpu-too-new")
"""What the rules about hardware say of the GPU itself; images and AMIs are no matter of memory."""

_RECKONED = ("drafting-slots",)
"""Rules whose errors the fit refuses by itself, and more exactly; their warnings are shown."""

_QUANTIZED = "quantization-estimated"


def findings_of(question: Question, case: FitCase) -> tuple[Finding, ...]:
    """Errors and warnings about target, head and load, errors about versions and the GPU.

    A version's warnings are about what is served, not about memory.
    """
    found = _of_rules(question, asked(question, case), ("target", "head", "load"))
    pair, read = question.pair, question.places
    if pair and read.drafter:
        strange = stranger(split_revision(read.drafter.location)[0], pair.target, question.catalog)
        found += [strange] if strange else []
    found += _unneeded(case)
    found += _without_processor(question, case)
    found += _quantized(read)
    return tuple(sorted(found, key=lambda f: ("error", "warning", "note").index(f.level)))


def refused_by_rules(question: Question, case: FitCase) -> bool:
    """Whether the rules about what the options of a fit decide refuse the case.

    Those about target and head are left out: nothing that a fit is asked mends these.
    """
    found = _of_rules(question, asked(question, case), ("load",))
    return any(finding.level == "error" for finding in found)


def _of_rules(question: Question, case: Case, subjects: Sequence[About]) -> list[Finding]:
    """All but notes about the subjects, and errors about versions and the GPU."""
    found = [
        finding
        for subject in subjects
        for finding in check(case, about=subject)
        if finding.level != "note" and not _is_reckoned(finding)
    ]
    assumed = on_assumed_gpu(question, case)
    found += (f for f in check(assumed, about="version") if f.level == "error")
    found += (f for f in check(case, only=_ABOUT_THE_GPU) if f.level == "error")
    return found


def _is_reckoned(finding: Finding) -> bool:
    return finding.code in _RECKONED and finding.level == "error"


def _unneeded(case: FitCase) -> list[Finding]:
    if case.engine.images or is_multimodal(case.target):
        return []
    message = "the target takes no images, so that --text-only changes nothing"
    return [note("text-only-unneeded", "--text-only", message, "leave it out")]


def _without_processor(question: Question, case: FitCase) -> list[Finding]:
    """A note that nothing is reckoned for images, where nobody asked for text only."""
    if question.given["text_only"] or not lacks_processor(question.places, case.target):
        return []
    message = (
        "no preprocessor_config.json lies beside the target's config.json, so that vLLM can take "
        "no images: reckoned for text"
    )
    return [note("text-only-assumed", "--target", message, "put it there to reckon with images")]


def _quantized(read: Places) -> list[Finding]:
    """Warnings about weights whose sizes come from their files, not from what vLLM makes of them.

    The arithmetic of heads takes 16 bits for every number.
    """
    found, target, head = [], read.target, read.drafter
    kind = unknown_quantization(target) if target else None
    if kind:
        message = f"weights quantised by {kind} are counted as they are stored"
        found.append(warning(_QUANTIZED, "target", message, "leave room for what vLLM repacks"))
    kind = read_quantization(head.config) if head else None
    if kind:
        message = f"the head is quantised by {kind}, and counted with 16 bits for every number"
        found.append(warning(_QUANTIZED, "drafter", message, "it may take less than shown"))
    return found


@dataclass(frozen=True)
class Report:
    """The fit, what speculation costs, why it is refused, what would mend that, and what the checks
    say. ``instance_type`` is ``None`` where the GPU was taken from its memory; ``unasked`` are the
    options that a plan chooses otherwise, with its values."""

    pair: str
    case: FitCase
    fit: Fit
    without_speculation: Comparison | None
    refusal: str | None
    advice: tuple[Advice, ...]
    findings: tuple[Finding, ...]
    instance_type: str | None
    unasked: dict[str, float]


def report_of(catalog: Catalog, name: str | None, given: dict[str, Any]) -> Report:
    """All that is shown. Raises what finding the pair and reading the places raise."""
    pair = find_pair(catalog, name) if name else None
    refuse_contradictions(given, _drafts(pair, given))
    question = Question(catalog, pair, read_places(given), given)
    case = case_of(catalog, pair, question.places, given)
    reckoned = fit_of(case)
    refusal = why_not(case)
    return Report(
        pair=_name(pair, case, given),
        case=case,
        fit=reckoned,
        without_speculation=compare(case, reckoned),
        refusal=refusal,
        advice=_advice(question, case) if refusal else (),
        findings=findings_of(question, case),
        instance_type=given["instance_type"],
        unasked=_unasked(pair, case, given),
    )


def option_of(advice: Advice) -> str:
    """The option as it is typed."""
    return f"--{advice.knob}" + ("" if advice.value == advice.knob else f" {advice.value}")


def _drafts(pair: Pair | None, given: dict[str, Any]) -> bool:
    """Whether anything that drafts was named, or may have been."""
    named = given["drafter"] or (pair and pair.drafter) or given["no_speculation"]
    return bool(named) or not given["target"]


def _advice(question: Question, case: FitCase) -> tuple[Advice, ...]:
    """What would make it fit, each as it comes out when that option is typed instead."""

    def turn(knob: str, value: object) -> FitCase | None:
        gone = {"gpu_memory_gib": None} if knob == "instance-type" else {}
        return _typed(question, {**gone, knob.replace("-", "_"): value})

    most = case.engine.gpu_count if question.given["instance_type"] else MOST_GPUS
    return advise(case, turn, question.catalog.instances, most)


def _typed(question: Question, changed: dict[str, Any]) -> FitCase | None:
    """The case with these options instead; ``None`` where they contradict others, such as a --tp
    that is too much for an instance type, and where the rules refuse it."""
    given = {**question.given, **changed}
    try:
        refuse_contradictions(given, _drafts(question.pair, given))
        case = case_of(question.catalog, question.pair, question.places, given)
    except UserError:
        return None
    return None if refused_by_rules(replace(question, given=given), case) else case


def document(report: Report) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    engine, without = report.case.engine, report.without_speculation
    return {
        "pair": report.pair,
        **report.fit.model_dump(),
        "instance_type": report.instance_type,
        "gpu_guessed": report.instance_type is None,
        "settings": {
            "vllm": engine.vllm,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "kv_cache_dtype": engine.kv_cache_dtype,
            "k": engine.k,
            "async_scheduling": schedules_ahead(engine, report.case.drafter),
        },
        "without_speculation": without.model_dump() if without else None,
        "refusal": report.refusal,
        "advice": [advice.model_dump() for advice in report.advice],
        "findings": [finding.model_dump() for finding in report.findings],
    }


def _unasked(pair: Pair | None, case: FitCase, given: dict[str, Any]) -> dict[str, float]:
    """What a plan of this pair takes otherwise than ``vllm serve`` where nothing is asked."""
    planned = {
        "gpu_memory_utilization": GPU_MEMORY_UTILIZATION,
        "max_num_seqs": float(USUAL_CONCURRENCY),
    }
    return {
        name: value
        for name, value in planned.items()
        if pair and given[name] is None and getattr(case.engine, name) != value
    }


def _name(pair: Pair | None, case: FitCase, given: dict[str, Any]) -> str:
    if pair is None:
        return f"{given['target']}+{given['drafter']}" if case.drafter else str(given["target"])
    if given["no_speculation"]:
        return pair.target.id
    return pair_name(pair.target, pair.drafter)
