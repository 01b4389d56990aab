"""The acceptance and the speed of a pair: one lookup of its runs for plans, verdicts and floors."""

from __future__ import annotations

from collections.abc import Collection

from peagle.catalog.schema import SpeedRun
from peagle.fit.models import Fit, FitCase
from peagle.planning.candidates import PairLoad
from peagle.speed.acceptance import acceptance_of
from peagle.speed.estimate import performance
from peagle.speed.evidence import names_in_runs
from peagle.speed.models import Acceptance, Performance, Workload


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


def pair_performance(
    work: PairLoad,
    case: FitCase,
    load: float,
    *,
    workload: Workload | None = None,
    acceptance: Acceptance | None = None,
    fit: Fit | None = None,
) -> Performance:
    """The performance of one engine that runs the pair, with ``load`` concurrent requests.

    ``case`` is the pair on its GPUs, with the K of ``work``, and ``fit`` its memory fit if known
    already. The size of requests and the acceptance are those of the pair unless given.
    """
    return performance(
        case,
        workload or work.workload,
        load,
        acceptance or pair_acceptance(work),
        work.catalog.speed_model,
        runs_of(work),
        names_of(work),
        fit=fit,
    )
