"""What the catalogue holds of its pairs, to list and to show."""

from __future__ import annotations

from typing import Any, TypeVar

from peagle.catalog.find import pair_name
from peagle.catalog.schema import AcceptanceOnText, Catalog, Drafter, Pair, Target
from peagle.catalog.tables import MethodSupport, Version, find_support
from peagle.frozen import Frozen

_METHOD_NAMES = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}


class Evidence(AcceptanceOnText):
    """A measured acceptance length, and the file that has the details."""

    target: str
    vllm: Version
    device: str
    date: str
    file: str


def find_evidence(catalog: Catalog, target: Target, drafter: Drafter) -> tuple[Evidence, ...]:
    """The acceptance lengths of this pair that were measured on text, without a speed."""
    names = {drafter.name, drafter.weights}
    return tuple(
        Evidence(
            **row.model_dump(),
            target=run.target,
            vllm=run.vllm,
            device=run.device,
            date=run.date.isoformat(),
            file=run.file,
        )
        for run in catalog.speeds.get(target.id, ())
        for row in run.on_text
        if row.drafter in names and not run.speeds
    )


class DrafterSummary(Frozen):
    """What helps to choose a drafter; ``verified``: its acceptance was measured."""

    name: str
    pair: str
    title: str
    kind: str
    method: str
    parallel_drafting: bool
    weights: str | None
    public: bool
    k_recommended: int
    k_trained: int | None
    min_vllm: str
    licence: str | None
    verified: bool
    evidence: tuple[Evidence, ...]


class TargetSummary(Frozen):
    """What helps to choose a target and one of its drafters."""

    id: str
    short_name: str
    title: str
    licence: str
    min_vllm: str
    default_drafter: str | None
    drafters: tuple[DrafterSummary, ...]


def summarize_target(catalog: Catalog, target: Target) -> TargetSummary:
    """The summary of a target with its drafters."""
    drafters = []
    for drafter in target.drafters:
        measured = find_evidence(catalog, target, drafter)
        # P-EAGLE is vLLM's method eagle3 with parallel drafting.
        kind = "P-EAGLE" if drafter.parallel_drafting else drafter.method
        added = {
            "pair": pair_name(target, drafter),
            "kind": _METHOD_NAMES.get(kind, kind),
            "verified": bool(measured),
            "evidence": measured,
        }
        drafters.append(_summary(DrafterSummary, drafter, added))
    return _summary(TargetSummary, target, {"drafters": tuple(drafters)})


Summary = TypeVar("Summary", DrafterSummary, TargetSummary)


def _summary(kind: type[Summary], entry: Drafter | Target, added: dict[str, Any]) -> Summary:
    """The fields that the entry has, and those that are ``added``."""
    same = {name: getattr(entry, name) for name in kind.model_fields.keys() - added.keys()}
    return kind(**same, **added)


def describe_pair(catalog: Catalog, pair: Pair) -> dict[str, Any]:
    """Everything that the catalogue holds of a pair."""
    support = default_support(catalog, pair.drafter)
    measured = find_evidence(catalog, pair.target, pair.drafter) if pair.drafter else ()
    return {
        "pair": pair_name(pair.target, pair.drafter),
        "file": catalog.origins[pair.target.id],
        "target": pair.target,
        "drafter": pair.drafter,
        "method_support": support,
        "verified": bool(measured),
        "evidence": measured,
    }


def default_support(catalog: Catalog, drafter: Drafter | None) -> MethodSupport | None:
    """How the catalogue's default vLLM runs the drafter's method; ``None`` if unknown."""
    if drafter is None:
        return None
    table = catalog.runtimes
    return find_support(table, drafter.method, drafter.parallel_drafting, table.default)
