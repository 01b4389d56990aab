"""The result of a proof as text."""

from __future__ import annotations

from peagle.planning.plan import FloorSource
from peagle.proof import SecondTurn

_BY: dict[FloorSource, str] = {
    "catalogue": "by the catalogue",
    "break-even": "to break even",
    "option": "by --floor",
}


def floor_text(floor: float | None, source: FloorSource | None) -> str:
    """``, at least 2.10 required by the catalogue``; empty where any accepted draft passes."""
    if floor is None or floor <= 1:
        return ""
    return f", at least {floor:.2f} required {_BY[source] if source else ''}".rstrip()


def second_turn_text(second: SecondTurn) -> str:
    """The acceptance length, and how much of the prompts came from the cache."""
    share, length = second.cached_share, second.acceptance_length
    cached = "unknown" if share is None else f"{share:.0%}"
    if share is not None and second.source == "log":
        cached += " (the engine's own rate, first turns included)"
    accepted = "unknown" if length is None else f"{length:.2f} over {second.drafts} drafts"
    return f"acceptance length {accepted}, prompt tokens from the cache: {cached}"
