"""What ``peagle fit`` reports, and how it comes by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from toolkit.catalog import find_pair, pair_name
from toolkit.catalog.models import Catalog, Pair
from toolkit.cli.fit_case import case_of
from toolkit.errors import UserError
from toolkit.fit.accounting import compare, fit_of, why_not
from toolkit.fit.advice import MOST_GPUS, advise
from toolkit.fit.models import Advice, Comparison, Fit, FitCase


@dataclass(frozen=True)
class Report:
    """The fit, what speculation costs, why it is refused, and what would mend that."""

    pair: str
    case: FitCase
    fit: Fit
    without_speculation: Comparison | None
    refusal: str | None
    advice: tuple[Advice, ...]


def report_of(catalog: Catalog, name: str | None, given: dict[str, Any]) -> Report:
    """All that is shown. Raises what finding the pair and reading the places raise."""
    pair = find_pair(catalog, name) if name else None
    if pair is None and not given["target"]:
        raise UserError("name a pair, or a folder with --target", "for example: peagle fit tiny")
    case = case_of(catalog, pair, given)
    reckoned = fit_of(case)
    refusal = why_not(case)
    most = case.engine.gpu_count if given["instance_type"] else MOST_GPUS
    return Report(
        pair=_name(pair, case, given),
        case=case,
        fit=reckoned,
        without_speculation=compare(case, reckoned),
        refusal=refusal,
        advice=advise(case, catalog.instances, most) if refusal else (),
    )


def document(report: Report) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    engine, without = report.case.engine, report.without_speculation
    return {
        "pair": report.pair,
        **report.fit.model_dump(),
        "settings": {
            "vllm": engine.vllm,
            "gpu_memory_utilization": engine.gpu_memory_utilization,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.max_num_seqs,
            "max_num_batched_tokens": engine.max_num_batched_tokens,
            "kv_cache_dtype": engine.kv_cache_dtype,
            "k": engine.k,
        },
        "without_speculation": without.model_dump() if without else None,
        "refusal": report.refusal,
        "advice": [advice.model_dump() for advice in report.advice],
    }


def _name(pair: Pair | None, case: FitCase, given: dict[str, Any]) -> str:
    if pair is None:
        return f"{given['target']}+{given['drafter']}" if case.drafter else str(given["target"])
    if given["no_speculation"]:
        return pair.target.id
    return pair_name(pair.target, pair.drafter)
