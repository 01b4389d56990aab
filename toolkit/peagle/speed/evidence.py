"""The measured speeds of a target: their order, and the names of drafters in them."""

from __future__ import annotations

from collections.abc import Iterable

from peagle.catalog.schema import Drafter, SpeedRun

TARGET_ALONE: frozenset[str | None] = frozenset({None})
"""The drafter name of a run's speeds of the target alone."""


def best_first(runs: Iterable[SpeedRun]) -> tuple[SpeedRun, ...]:
    """The runs in the order in which they answer: trained heads before imposed acceptance, then
    the newest."""
    return tuple(sorted(runs, key=lambda run: (run.synthetic, -run.date.toordinal())))


def names_in_runs(drafter: Drafter | None, own: bool) -> frozenset[str | None]:
    """The names of this drafter in runs; the user's own head has only its location."""
    if drafter is None:
        return TARGET_ALONE
    known = {drafter.weights} if own else {drafter.weights, drafter.name}
    return frozenset(name for name in known if name is not None)
