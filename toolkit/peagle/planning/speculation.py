"""Whether to speculate on one GPU at one load, with which K, and how vLLM is configured for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.catalog.schema import Drafter, SpeedRun, Target
from peagle.errors import UserError
from peagle.findings import Finding, note, warning
from peagle.planning.drafter import SelectedPair
from peagle.planning.plan import Decision, Options, Speculation, Weights, decide
from peagle.planning.speeds import Estimate, SpeedComparison, compare, measured_loads, names_of
from peagle.text import format_concurrency


@dataclass(frozen=True)
class DrafterRequest:
    """The pair's drafter and the user's options for it.

    ``k`` is the user's. ``insists``: the user named K or the drafter, so speculation stays even
    where it is slower.
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
class SpeculationChoice:
    """The drafter and K on one GPU at one load. ``k`` is 0 without speculation.

    ``speed`` is for this drafter and K at this load, if known. ``compared`` is the same run's
    comparison at this load or the nearest one; ``None`` without evidence.
    """

    drafter: Drafter | None
    k: int
    speed: Estimate | None = None
    compared: SpeedComparison | None = None

    @property
    def loses(self) -> bool:
        """Whether the target alone is faster than with the best K."""
        if self.compared is None or self.compared.alone is None:
            return False
        alone, best = self.compared.alone, self.compared.fastest
        return alone.tokens_per_second > best.tokens_per_second


def drafter_request(options: Options, pair: SelectedPair) -> DrafterRequest:
    """The user's options for this pair's drafter."""
    named = "+" in options.pair or options.drafter is not None or options.k is not None
    return DrafterRequest(pair.drafter, pair.own is not None, options.k, named)


def choose_speculation(
    request: DrafterRequest, runs: Sequence[SpeedRun], load: float
) -> SpeculationChoice:
    """The fastest measured K at ``load`` concurrent requests; none if the target alone is faster.

    Outside the measured loads, K is that of the nearest and no speed is claimed. Without evidence
    for this drafter and K, the choice is that of ``request``. ``runs`` are those on the GPU in
    question, best first.
    """
    drafter, names = request.drafter, names_of(request.drafter, request.own)
    if drafter is None:
        found = compare(runs, names, load)
        return SpeculationChoice(None, 0, found.fastest if found else None)
    found = compare(runs, names, load, k=request.k, k_trained=drafter.k_trained)
    if found is None:
        return _from_nearest(request, drafter, runs, load)
    best = found.fastest if request.k is None else found.by_k[request.k]
    speculation = SpeculationChoice(drafter, best.k, best, found)
    if speculation.loses and not request.insists:
        return SpeculationChoice(None, 0, found.alone, found)
    return speculation


def _from_nearest(
    request: DrafterRequest, drafter: Drafter, runs: Sequence[SpeedRun], load: float
) -> SpeculationChoice:
    names = names_of(drafter, request.own)
    for run in runs if request.k is None else ():
        loads = measured_loads([run], names)
        nearest = min(max(load, loads[0]), loads[-1]) if loads else load
        found = compare([run], names, nearest, k_trained=drafter.k_trained)
        if found is not None:
            return SpeculationChoice(drafter, found.fastest.k, None, found)
    return SpeculationChoice(drafter, request.usual_k)


def faster_drafter(target: Target, loser: Drafter, alone: Estimate) -> Iterator[str]:
    """``chat+p-eagle --k 3 (10,732 tokens/s)``: the fastest of the target's other drafters, when it
    is faster than ``alone``, the target without one."""
    others = (drafter for drafter in target.drafters if drafter.name != loser.name)
    found = [(best, drafter) for drafter in others if (best := _wins(drafter, alone))]
    if found:
        best, drafter = max(found, key=lambda pair: pair[0].tokens_per_second)
        pair = f"{target.short_name}+{drafter.name} --k {best.k}"
        yield f"{pair} ({best.tokens_per_second:,.0f} tokens/s)"


def _wins(drafter: Drafter, alone: Estimate) -> Estimate | None:
    """The drafter's fastest K where ``alone`` was measured, if it is faster and can be used."""
    if not drafter.public:
        return None
    names = names_of(drafter, own=False)
    found = compare([alone.run], names, alone.load, k_trained=drafter.k_trained)
    # A run may have measured one load with requests of two sizes: only like is compared with like.
    if found is None or found.alone != alone:
        return None
    faster = found.fastest.tokens_per_second > alone.tokens_per_second
    return found.fastest if faster else None


_CLOSE_TO_FASTEST = 0.95
"""Below this share of the fastest K's speed, the user's own K gets a note."""


def check_k(options: Options) -> None:
    """Raise UserError for a K below 1."""
    if options.k is not None and options.k < 1:
        raise UserError(
            f"K must be at least 1, not {options.k}",
            "use --no-speculation to serve the target alone",
        )


def choose_k(
    options: Options, drafter: Drafter, own: bool, speculation: SpeculationChoice
) -> Decision[int]:
    """Tokens drafted per step: the user's, the fastest measured, else the model card's.

    ``own``: the drafter is the user's own head, for which no card is known.
    """
    if options.k is not None:
        return Decision(options.k)
    if speculation.compared is not None:
        return decide(
            speculation.k, "k", _fastest(speculation.compared, speculation.speed is not None)
        )
    because = f"recommended for {drafter.title} ({drafter.source})"
    if own:
        because = f"your own head has no known card; recommended for {drafter.source}"
    return decide(drafter.k_recommended, "k", because)


def _fastest(compared: SpeedComparison, at_this_load: bool) -> str:
    best = compared.fastest
    others = [estimate for k, estimate in sorted(compared.by_k.items()) if k != best.k]
    at = f"at {format_concurrency(best.load)}"
    if not at_this_load:
        at += ", the nearest measured load"
    speed = f"{best.tokens_per_second:,.0f} tokens/s {at}"
    if not others:
        return f"the only measured K: {speed} ({best.source})"
    slower = ", ".join(f"{e.tokens_per_second:,.0f} with K={e.k}" for e in others)
    return f"the fastest measured: {speed}, {slower} ({best.source})"


def without_speculation(
    pair: SelectedPair, speculation: SpeculationChoice
) -> Decision[SelectedPair]:
    """The pair without its drafter, which evidence shows to be slower."""
    alone = replace(pair, drafter=None)
    because = "the target alone is measured to be faster at this load; see the findings"
    reasons = decide(alone, "drafter", because, shown="none").reasons
    return Decision(alone, reasons, speculation_findings(pair, speculation))


def speculation_findings(pair: SelectedPair, speculation: SpeculationChoice) -> tuple[Finding, ...]:
    """Evidence against this drafter or K on that GPU at that load."""
    if pair.drafter is None or speculation.compared is None:
        return ()
    best, alone = speculation.compared.fastest, speculation.compared.alone
    if speculation.loses and alone is not None:
        message = (
            f"at {format_concurrency(best.load)} {pair.target.title} reaches "
            f"{alone.tokens_per_second:,.0f} tokens/s alone and {best.tokens_per_second:,.0f} at "
            f"best (K={best.k}) with {pair.drafter.title}: {best.source}"
        )
        fix = _instead(pair, pair.drafter, alone, planned=speculation.drafter is not None)
        return (warning("speculation-loses", "drafter", message, fix),)
    speed = speculation.speed
    if speed is None or speed.tokens_per_second >= _CLOSE_TO_FASTEST * best.tokens_per_second:
        return ()
    message = (
        f"K={speed.k} reaches {speed.tokens_per_second:,.0f} tokens/s at "
        f"{format_concurrency(best.load)}, K={best.k} {best.tokens_per_second:,.0f}: {best.source}"
    )
    return (note("k-below-fastest", "k", message, f"use --k {best.k}, or leave --k out"),)


def _instead(pair: SelectedPair, loser: Drafter, alone: Estimate, *, planned: bool) -> str:
    """What to use instead of a slower drafter, with measured speeds."""
    better = [*faster_drafter(pair.target, loser, alone)]
    if planned:
        without = f"--no-speculation ({alone.tokens_per_second:,.0f} tokens/s)"
        choices = " or ".join([*better, without])
        return f"use {choices}, unless your requests are more predictable"
    faster = "".join(f"; faster: {words}" for words in better)
    name = f"{pair.target.short_name}+{loser.name}"
    return f"planned without speculation{faster}; to speculate anyway, plan {name} or set --k"


def speculation_of(drafter: Drafter, k: int) -> Speculation:
    """Speculation with this drafter and K."""
    return Speculation(
        method=drafter.method,
        parallel_drafting=drafter.parallel_drafting,
        k=k,
        settings=dict(drafter.speculative_settings),
        acceptance_floor=_floor(drafter, k),
    )


def _floor(drafter: Drafter, k: int) -> float | None:
    """The catalogue's floor is for the recommended K; a smaller K has a lower one.

    Later positions are never accepted more often than earlier ones, so the first K of N accept at
    least K/N of what all N accept.
    """
    if drafter.acceptance_floor is None:
        return None
    share = min(k / drafter.k_recommended, 1)
    return round(1 + (drafter.acceptance_floor - 1) * share, 2)


def speculative_config(speculation: Speculation, weights: Weights | None) -> str:
    """The value of vLLM's ``--speculative-config``: JSON on one line, in ASCII."""
    config: dict[str, Any] = {"method": speculation.method}
    if weights is not None:
        config["model"] = weights.engine_path
        if weights.revision is not None:
            config["revision"] = weights.revision
    config["num_speculative_tokens"] = speculation.k
    if speculation.parallel_drafting:
        config["parallel_drafting"] = True
    return json.dumps(config | speculation.settings, separators=(",", ":"))
