"""Whether to speculate on one GPU at one load, and with which K: the verdict of the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.catalog.models import Drafter, SpeedRun
from toolkit.planning.drafters import Chosen
from toolkit.planning.models import Options
from toolkit.planning.speeds import Comparison, Estimate, compare, measured_loads, names_of


@dataclass(frozen=True)
class Asked:
    """The drafter of the pair, and what the user wants of it.

    ``k`` is the user's own; ``insists`` is whether the user named K or the drafter, so that
    speculation stays even where it loses.
    """

    drafter: Drafter | None
    own: bool
    k: int | None
    insists: bool

    @property
    def usual_k(self) -> int:
        """The user's K, else the card's; 0 without a drafter."""
        if self.drafter is None:
            return 0
        return self.drafter.k_recommended if self.k is None else self.k


@dataclass(frozen=True)
class Verdict:
    """What drafts on one GPU at one load. ``k`` is 0 when nothing does.

    ``speed`` is that of this drafter and K at this load, where it is known. ``compared`` is what
    the same run measured beside it, or at the nearest load; ``None`` without evidence.
    """

    drafter: Drafter | None
    k: int
    speed: Estimate | None = None
    compared: Comparison | None = None

    @property
    def loses(self) -> bool:
        """Whether the target alone is faster than with the best K."""
        if self.compared is None or self.compared.alone is None:
            return False
        alone, best = self.compared.alone, self.compared.fastest
        return alone.tokens_per_second > best.tokens_per_second


def asked_for(options: Options, pair: Chosen) -> Asked:
    """What the user wants of this pair's drafter."""
    named = "+" in options.pair or options.drafter is not None or options.k is not None
    return Asked(pair.drafter, pair.own is not None, options.k, named)


def judge(asked: Asked, runs: Sequence[SpeedRun], load: float) -> Verdict:
    """The fastest measured K at ``load`` requests at a time, or none where none pays.

    At a load beyond the measured ones K is that of the nearest, and no speed is claimed. Without
    evidence for this drafter, and with the user's own K, it is that of ``asked``. ``runs`` are
    those on the GPU in question, best first.
    """
    drafter, names = asked.drafter, names_of(asked.drafter, asked.own)
    if drafter is None:
        found = compare(runs, names, load)
        return Verdict(None, 0, found.fastest if found else None)
    found = compare(runs, names, load, k=asked.k, k_trained=drafter.k_trained)
    if found is None:
        return _from_nearest(asked, drafter, runs, load)
    chosen = found.fastest if asked.k is None else found.by_k[asked.k]
    verdict = Verdict(drafter, chosen.k, chosen, found)
    if verdict.loses and not asked.insists:
        return Verdict(None, 0, found.alone, found)
    return verdict


def _from_nearest(asked: Asked, drafter: Drafter, runs: Sequence[SpeedRun], load: float) -> Verdict:
    names = names_of(drafter, asked.own)
    for run in runs if asked.k is None else ():
        loads = measured_loads([run], names)
        nearest = min(max(load, loads[0]), loads[-1]) if loads else load
        found = compare([run], names, nearest, k_trained=drafter.k_trained)
        if found is not None:
            return Verdict(drafter, found.fastest.k, None, found)
    return Verdict(drafter, asked.usual_k)
