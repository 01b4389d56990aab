"""What ``peagle fit`` reports, and how it comes by it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from toolkit.catalog import find_pair, pair_name
from toolkit.catalog.models import Catalog, Pair
from toolkit.cli.fit_asked import Question
from toolkit.cli.fit_case import case_of, read_places
from toolkit.cli.fit_findings import findings_of, refused_by_rules
from toolkit.cli.fit_options import refuse_contradictions
from toolkit.errors import UserError
from toolkit.findings import Finding
from toolkit.fit.accounting import compare, fit_of, why_not
from toolkit.fit.advice import MOST_GPUS, advise
from toolkit.fit.engine import schedules_ahead
from toolkit.fit.models import Advice, Comparison, Fit, FitCase
from toolkit.planning.limits import USUAL_CONCURRENCY
from toolkit.planning.memory import GPU_MEMORY_UTILIZATION


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
