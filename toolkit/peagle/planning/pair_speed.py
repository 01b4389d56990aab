"""The acceptance and the speed of a pair, by one lookup of its runs, and the floor of its proof."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from peagle.catalog.schema import SpeedRun
from peagle.fit.models import Fit, FitCase
from peagle.planning.candidates import InstanceFit, PairLoad, planned_fit
from peagle.planning.plan import Decision, Reason, Speculation
from peagle.speed.acceptance import acceptance_of
from peagle.speed.estimate import break_even_length, performance
from peagle.speed.models import Acceptance, Performance, names_in_runs

LIKELY_LENGTH = 2.0
"""Tokens per step that a drafter without a known acceptance is assumed to make, to find its
break-even length, which hardly depends on it."""


def runs_of(work: PairLoad) -> tuple[SpeedRun, ...]:
    """The measured runs of the target, on any GPU, in the order in which they answer."""
    return work.catalog.speeds.get(work.target.id, ())


def names_of(work: PairLoad) -> Collection[str | None]:
    """The names of the pair's drafter in runs."""
    return names_in_runs(work.drafter, work.own_head)


def pair_acceptance(work: PairLoad) -> Acceptance:
    """What is known of the acceptance length of the pair with its K: measured on any device, with
    or without a speed, or published."""
    decay = work.catalog.speed_model.decay
    runs, names = runs_of(work), names_of(work)
    return acceptance_of(work.drafter, work.k, runs, names, decay=decay)


def may_be_known(work: PairLoad) -> bool:
    """Whether there can be a speed of the pair: measured, or from a known acceptance."""
    names = names_of(work)
    measured = (row.drafter in names for run in runs_of(work) for row in run.speeds)
    return pair_acceptance(work).basis != "unknown" or any(measured)


def pair_performance(
    work: PairLoad,
    case: FitCase,
    load: float,
    *,
    acceptance: Acceptance | None = None,
    fit: Fit | None = None,
    engines: int = 1,
) -> Performance:
    """The performance of one of ``engines`` engines that run the pair, with ``load`` concurrent
    requests.

    ``case`` is the pair on its GPUs, with the K of ``work``, and ``fit`` its memory fit if known
    already. The acceptance is that of the pair unless given.
    """
    return performance(
        case,
        work.workload,
        load,
        acceptance or pair_acceptance(work),
        work.catalog.speed_model,
        runs_of(work),
        names_of(work),
        fit=fit,
        engines=engines,
    )


def likely_acceptance(k: int) -> Acceptance:
    """The acceptance that is assumed of a drafter of which none is known."""
    return Acceptance(min(LIKELY_LENGTH, k + 1), "assumed", "assumed: none is known")


def with_break_even(
    speculation: Speculation | None, work: PairLoad, on: InstanceFit, load: float
) -> Speculation | None:
    """The speculation with a floor: without one of the catalogue, the acceptance length above
    which it is faster than the target alone, with ``load`` requests on these GPUs.

    Without a floor where the speed is not known, and where the drafter is not expected to reach
    that length: findings of the plan report it, and a proof could only fail.
    """
    if speculation is None or work.drafter is None or speculation.acceptance_floor is not None:
        return speculation
    floor, acceptance = _break_even(work, on, load), pair_acceptance(work)
    most = work.k + 1 if acceptance.basis == "unknown" else acceptance.length
    if floor is None or not 1 < floor <= most:
        return speculation
    changes = {"acceptance_floor": floor, "acceptance_floor_source": "break-even"}
    return speculation.model_copy(update=changes)


def break_even_decision(work: PairLoad, on: InstanceFit, load: float) -> Decision[None]:
    """The reason ``break_even``: the acceptance length above which the drafter pays with ``load``
    requests on these GPUs, or why there is none."""
    length = _break_even(work, on, load)
    value, because = "unknown", "the speed with the drafter or without it is unknown here"
    if length is not None and length > work.k + 1:
        value, because = "none", f"the target alone is faster even if all {work.k} drafts count"
    elif length is not None:
        value, because = f"{length:g} tokens per step", "with fewer, the target alone is faster"
    return Decision(None, (Reason(what="break_even", value=value, because=because),))


def _break_even(work: PairLoad, on: InstanceFit, load: float) -> float | None:
    acceptance = pair_acceptance(work)
    assumed = likely_acceptance(work.k) if acceptance.basis == "unknown" else acceptance
    gpus = on.case.engine.tensor_parallel_size
    alone = replace(work, drafter=None, k=0)
    drafting = pair_performance(work, on.case, load, acceptance=assumed, fit=on.fit)
    target = pair_performance(alone, planned_fit(alone, on.instance, gpus), load)
    length = break_even_length(drafting, target, work.workload, load)
    return None if length is None else round(length, 2)
