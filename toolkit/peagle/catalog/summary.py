"""Targets and their drafters as ``peagle catalog list`` and ``catalog show`` report them."""

from __future__ import annotations

import gc
from typing import Any

from peagle.catalog.evidence import Evidence, evidence_for
from peagle.catalog.find import pair_name
from peagle.catalog.schema import Catalog, Drafter, Pair, Target

_METHOD_NAMES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}


def summarize_targets(catalog: Catalog, evidence: tuple[Evidence, ...]) -> list[dict[str, Any]]:
    """A summary of each target with its drafters; raises CatalogError for a wrong file."""
    # Nothing that is read here becomes garbage: the collector would double the time of a long list.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return [summarize_target(target, evidence) for target in catalog.targets.values()]
    finally:
        if was_enabled:
            gc.enable()


def summarize_target(target: Target, evidence: tuple[Evidence, ...]) -> dict[str, Any]:
    """What helps to choose a target and one of its drafters."""
    fields = {"id", "short_name", "title", "licence", "min_vllm", "default_drafter"}
    return {
        **target.model_dump(mode="json", include=fields),
        "drafters": [
            _drafter(target, drafter, evidence_for(evidence, target, drafter))
            for drafter in target.drafters
        ],
    }


def describe_pair(catalog: Catalog, pair: Pair, measured: tuple[Evidence, ...]) -> dict[str, Any]:
    """Everything that the catalogue holds of a pair; ``measured`` is its evidence."""
    return {
        "pair": pair_name(pair.target, pair.drafter),
        "file": catalog.origins[pair.target.id],
        "target": pair.target.model_dump(mode="json"),
        "drafter": pair.drafter.model_dump(mode="json") if pair.drafter else None,
        "verified": bool(measured),
        "evidence": [item.model_dump() for item in measured],
    }


def _drafter(target: Target, drafter: Drafter, measured: tuple[Evidence, ...]) -> dict[str, Any]:
    return {
        "name": drafter.name,
        "pair": pair_name(target, drafter),
        "title": drafter.title,
        # P-EAGLE is vLLM's method eagle3 with parallel drafting.
        "kind": "P-EAGLE"
        if drafter.parallel_drafting
        else _METHOD_NAMES.get(drafter.method, drafter.method),
        "method": drafter.method,
        "parallel_drafting": drafter.parallel_drafting,
        "weights": drafter.weights,
        "public": drafter.public,
        "k_recommended": drafter.k_recommended,
        "k_trained": drafter.k_trained,
        "min_vllm": drafter.min_vllm,
        "licence": drafter.licence,
        "verified": bool(measured),
        "evidence": [item.model_dump() for item in measured],
    }
