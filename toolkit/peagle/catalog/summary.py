"""What the catalogue holds of its pairs, to list and to show, as plain data."""

from __future__ import annotations

from typing import Any

from peagle.catalog.find import pair_name
from peagle.catalog.schema import Catalog, Drafter, Pair, Target
from peagle.catalog.tables import MethodSupport, find_support

_METHOD_NAMES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}

_OF_TARGET = ("id", "short_name", "title", "licence", "min_vllm", "default_drafter")
_OF_DRAFTER = (
    "name", "title", "method", "parallel_drafting", "weights", "public", "k_recommended",
    "k_trained", "min_vllm", "licence",
)  # fmt: skip
"""The keys that help to choose a target and one of its drafters."""


def find_evidence(catalog: Catalog, target: Target, drafter: Drafter) -> list[dict[str, Any]]:
    """The acceptance lengths of this pair that were measured on text, without a speed, each with
    the file that has the details."""
    return [
        {
            **row.model_dump(),
            "target": run.target,
            "vllm": run.vllm,
            "device": run.device,
            "date": run.date.isoformat(),
            "file": run.file,
        }
        for run in catalog.speeds.get(target.id, ())
        for row in run.on_text
        if row.drafter in (drafter.name, drafter.weights) and not run.speeds
    ]


def summarize_target(catalog: Catalog, target: Target) -> dict[str, Any]:
    """The summary of a target with its drafters; ``verified``: an acceptance was measured."""
    drafters = []
    for drafter in target.drafters:
        measured = find_evidence(catalog, target, drafter)
        # P-EAGLE is vLLM's method eagle3 with parallel drafting.
        kind = "P-EAGLE" if drafter.parallel_drafting else drafter.method
        drafters.append(
            {
                **{key: getattr(drafter, key) for key in _OF_DRAFTER},
                "pair": pair_name(target, drafter),
                "kind": _METHOD_NAMES.get(kind, kind),
                "verified": bool(measured),
                "evidence": measured,
            }
        )
    return {**{key: getattr(target, key) for key in _OF_TARGET}, "drafters": drafters}


def describe_pair(catalog: Catalog, pair: Pair) -> dict[str, Any]:
    """Everything that the catalogue holds of a pair."""
    measured = find_evidence(catalog, pair.target, pair.drafter) if pair.drafter else []
    return {
        "pair": pair_name(pair.target, pair.drafter),
        "file": catalog.origins[pair.target.id],
        "target": pair.target,
        "drafter": pair.drafter,
        "method_support": default_support(catalog, pair.drafter),
        "verified": bool(measured),
        "evidence": measured,
    }


def default_support(catalog: Catalog, drafter: Drafter | None) -> MethodSupport | None:
    """How the catalogue's default vLLM runs the drafter's method; ``None`` if unknown."""
    if drafter is None:
        return None
    table = catalog.runtimes
    return find_support(table, drafter.method, drafter.parallel_drafting, table.default)
