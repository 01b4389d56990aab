"""The least acceptance length of a proof where the catalogue has none: from the speed model."""

from __future__ import annotations

from dataclasses import replace

from peagle.catalog.schema import Drafter
from peagle.planning.candidates import InstanceFit, PairLoad, planned_fit
from peagle.planning.plan import Speculation
from peagle.speed.acceptance import ALONE, acceptance_of
from peagle.speed.deciding import break_even_length
from peagle.speed.estimate import performance
from peagle.speed.evidence import TARGET_ALONE, names_in_runs
from peagle.speed.models import Acceptance

LIKELY_LENGTH = 2.0
"""Tokens per step that a drafter without a known acceptance is assumed to make, to find its
break-even length, which hardly depends on it."""


def likely_acceptance(k: int) -> Acceptance:
    """The acceptance that is assumed of a drafter of which none is known."""
    return Acceptance(min(LIKELY_LENGTH, k + 1), "published", "assumed")


def with_break_even(
    speculation: Speculation | None, work: PairLoad, on: InstanceFit, load: float
) -> Speculation | None:
    """The speculation with a floor: without one of the catalogue, the acceptance length from which
    on it is as fast as the target alone, with ``load`` requests on these GPUs.

    Without a floor where the speed is not known, and where the drafter is not expected to reach
    that length: findings of the plan report it, and a proof could only fail.
    """
    drafter = work.drafter
    if speculation is None or drafter is None or speculation.acceptance_floor is not None:
        return speculation
    floor = _break_even(work, drafter, on, load)
    if floor is None or floor <= 1:
        return speculation
    changes = {"acceptance_floor": floor, "acceptance_floor_source": "break-even"}
    return speculation.model_copy(update=changes)


def _break_even(work: PairLoad, drafter: Drafter, on: InstanceFit, load: float) -> float | None:
    model, runs = work.catalog.speed_model, work.catalog.speeds.get(work.target.id, ())
    names = names_in_runs(drafter, own=False)
    known = acceptance_of(drafter, work.k, runs, names, decay=model.decay)
    assumed = likely_acceptance(work.k) if known.basis == "unknown" else known
    gpus = on.case.engine.tensor_parallel_size
    alone = planned_fit(replace(work, drafter=None, k=0), on.instance, gpus)
    size = work.workload
    drafting = performance(on.case, size, load, assumed, model, runs, names, fit=on.fit)
    target = performance(alone, size, load, ALONE, model, runs, TARGET_ALONE)
    length = break_even_length(drafting, target, size, load)
    most = work.k + 1 if known.basis == "unknown" else known.length
    return None if length is None or length > most else round(length, 2)
