"""The least acceptance length of a proof where the catalogue has none: from the speed model."""

from __future__ import annotations

from dataclasses import replace

from peagle.planning.candidates import InstanceFit, PairLoad, planned_fit
from peagle.planning.pair_speed import pair_acceptance, pair_performance
from peagle.planning.plan import Speculation
from peagle.speed.estimate import break_even_length
from peagle.speed.models import Acceptance

LIKELY_LENGTH = 2.0
"""Tokens per step that a drafter without a known acceptance is assumed to make, to find its
break-even length, which hardly depends on it."""


def likely_acceptance(k: int) -> Acceptance:
    """The acceptance that is assumed of a drafter of which none is known."""
    return Acceptance(min(LIKELY_LENGTH, k + 1), "assumed", "assumed: none is known")


def with_break_even(
    speculation: Speculation | None, work: PairLoad, on: InstanceFit, load: float
) -> Speculation | None:
    """The speculation with a floor: without one of the catalogue, the acceptance length from which
    on it is as fast as the target alone, with ``load`` requests on these GPUs.

    Without a floor where the speed is not known, and where the drafter is not expected to reach
    that length: findings of the plan report it, and a proof could only fail.
    """
    if speculation is None or work.drafter is None or speculation.acceptance_floor is not None:
        return speculation
    floor = _break_even(work, on, load)
    if floor is None or floor <= 1:
        return speculation
    changes = {"acceptance_floor": floor, "acceptance_floor_source": "break-even"}
    return speculation.model_copy(update=changes)


def _break_even(work: PairLoad, on: InstanceFit, load: float) -> float | None:
    known = pair_acceptance(work)
    assumed = likely_acceptance(work.k) if known.basis == "unknown" else known
    gpus = on.case.engine.tensor_parallel_size
    alone = replace(work, drafter=None, k=0)
    drafting = pair_performance(work, on.case, load, acceptance=assumed, fit=on.fit)
    target = pair_performance(alone, planned_fit(alone, on.instance, gpus), load)
    length = break_even_length(drafting, target, work.workload, load)
    most = work.k + 1 if known.basis == "unknown" else known.length
    return None if length is None or length > most else round(length, 2)
