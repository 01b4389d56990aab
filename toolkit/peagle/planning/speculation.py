"""Whether to speculate on one GPU at one load, with which K, and how vLLM is configured for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from peagle.catalog.schema import Drafter, SpeedRun, Target
from peagle.errors import UserError
from peagle.findings import Finding, note, warning
from peagle.planning.drafter import SelectedPair
from peagle.planning.plan import Decision, Options, Speculation, Weights, decide
from peagle.speed.evidence import Estimate, SpeedComparison, compare, measured_loads, names_in_runs
from peagle.text import format_concurrency


def usual_k(options: Options, drafter: Drafter | None) -> int:
    """The user's K, else the recommended one; 0 without a drafter."""
    if drafter is None:
        return 0
    return drafter.k_recommended if options.k is None else options.k


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
    def is_slower_than_target(self) -> bool:
        """Whether the target alone is faster than with the best K."""
        if self.compared is None or self.compared.alone is None:
            return False
        alone, best = self.compared.alone, self.compared.fastest
        return alone.tokens_per_second > best.tokens_per_second


def choose_speculation(
    options: Options, pair: SelectedPair, runs: Sequence[SpeedRun], load: float
) -> SpeculationChoice:
    """The fastest measured K at ``load`` concurrent requests; none if the target alone is faster
    and the user named neither drafter nor K.

    Outside the measured loads, K is that of the nearest and no speed is claimed. Without evidence
    for this drafter and K, the usual K. ``runs`` are those on the GPU in question, best first.
    """
    drafter, names = pair.drafter, names_in_runs(pair.drafter, pair.own is not None)
    if drafter is None:
        found = compare(runs, names, load)
        return SpeculationChoice(None, 0, found.fastest if found else None)
    found = compare(runs, names, load, k=options.k, k_trained=drafter.k_trained)
    if found is not None:
        best = found.fastest if options.k is None else found.by_k[options.k]
        chosen = SpeculationChoice(drafter, best.k, best, found)
        named = "+" in options.pair or options.drafter is not None or options.k is not None
        if chosen.is_slower_than_target and not named:
            return SpeculationChoice(None, 0, found.alone, found)
        return chosen
    for run in runs if options.k is None else ():
        loads = measured_loads([run], names)
        nearest = min(max(load, loads[0]), loads[-1]) if loads else load
        found = compare([run], names, nearest, k_trained=drafter.k_trained)
        if found is not None:
            return SpeculationChoice(drafter, found.fastest.k, None, found)
    return SpeculationChoice(drafter, usual_k(options, drafter))


def _faster_drafter(target: Target, loser: Drafter, alone: Estimate) -> str | None:
    """``chat+p-eagle --k 3 (10,732 tokens/s)``: the fastest of the target's other drafters, when it
    is faster than ``alone``, the target without one."""
    found = [
        (best, drafter)
        for drafter in target.drafters
        if drafter.public and drafter.name != loser.name and (best := _wins(drafter, alone))
    ]
    if not found:
        return None
    best, drafter = max(found, key=lambda pair: pair[0].tokens_per_second)
    return f"{target.short_name}+{drafter.name} --k {best.k} ({best.speed_text})"


def _wins(drafter: Drafter, alone: Estimate) -> Estimate | None:
    """The drafter's fastest K where ``alone`` was measured, if it is faster."""
    names = names_in_runs(drafter, own=False)
    found = compare([alone.run], names, alone.load, k_trained=drafter.k_trained)
    # A run may have measured one load with two request sizes, which are not compared.
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
    """Tokens drafted per step: the user's, the fastest measured, else the recommended ones.

    ``own``: the drafter is the user's own head, whose model card is known only if it is a copy.
    """
    if options.k is not None:
        return Decision(options.k)
    if speculation.compared is not None:
        because = _fastest(speculation.compared, speculation.speed is not None)
    elif own:
        because = f"recommended for {drafter.source}"
        if drafter.licence is None:  # only a copy of the catalogue's head has one
            because = f"the model card of your head is unknown; {because}"
    else:
        because = f"recommended for {drafter.title} ({drafter.source})"
    return decide(speculation.k, "k", because)


def _fastest(compared: SpeedComparison, at_this_load: bool) -> str:
    best = compared.fastest
    others = [estimate for k, estimate in sorted(compared.by_k.items()) if k != best.k]
    nearest = "" if at_this_load else ", the nearest measured load"
    speed = f"{best.speed_text} with {format_concurrency(best.load)}{nearest}"
    if not others:
        return f"the only measured K: {speed} ({best.source})"
    slower = ", ".join(f"{e.tokens_per_second:,.0f} with K={e.k}" for e in others)
    return f"the fastest measured: {speed}, {slower} ({best.source})"


def without_speculation(
    pair: SelectedPair, speculation: SpeculationChoice
) -> Decision[SelectedPair]:
    """The pair without its drafter, which evidence shows to be slower."""
    because = "the target alone is measured to be faster at this load; see the findings"
    alone = decide(replace(pair, drafter=None), "drafter", because, shown="none")
    return replace(alone, findings=speculation_findings(pair, speculation))


def speculation_findings(pair: SelectedPair, speculation: SpeculationChoice) -> tuple[Finding, ...]:
    """Evidence against this drafter or K on that GPU at that load."""
    if pair.drafter is None or speculation.compared is None:
        return ()
    best, alone = speculation.compared.fastest, speculation.compared.alone
    if speculation.is_slower_than_target and alone is not None:
        message = (
            f"with {format_concurrency(best.load)}, {pair.target.title} reaches "
            f"{alone.speed_text} alone and {best.tokens_per_second:,.0f} at best (K={best.k}) with "
            f"{pair.drafter.title}: {best.source}"
        )
        faster = _faster_drafter(pair.target, pair.drafter, alone)
        if speculation.drafter is not None:
            choices = filter(None, (faster, f"--no-speculation ({alone.speed_text})"))
            fix = f"use {' or '.join(choices)}, unless your requests are more predictable"
        else:
            name = f"{pair.target.short_name}+{pair.drafter.name}"
            fix = "planned without speculation" + (f"; faster: {faster}" if faster else "")
            fix += f"; to speculate anyway, plan {name} or set --k"
        return (warning("speculation-loses", "drafter", message, fix),)
    speed = speculation.speed
    if speed is None or speed.tokens_per_second >= _CLOSE_TO_FASTEST * best.tokens_per_second:
        return ()
    message = (
        f"K={speed.k} reaches {speed.speed_text} with {format_concurrency(best.load)}, "
        f"K={best.k} {best.tokens_per_second:,.0f}: {best.source}"
    )
    return (note("k-below-fastest", "k", message, f"use --k {best.k}, or leave --k out"),)


def build_speculation(drafter: Drafter, k: int) -> Speculation:
    """Speculation with this drafter and K."""
    return Speculation(
        method=drafter.method,
        parallel_drafting=drafter.parallel_drafting,
        k=k,
        settings=dict(drafter.speculative_settings),
        acceptance_floor=floor_of(drafter, k),
    )


def floor_of(drafter: Drafter, k: int) -> float | None:
    """The least acceptance length of this drafter with this K that is a proof, if there is one.

    The catalogue's floor is for the recommended K; a smaller K has a lower one: later positions are
    never accepted more often than earlier ones, so the first K of N accept at least K/N of what all
    N accept.
    """
    floor, share = drafter.acceptance_floor, min(k / drafter.k_recommended, 1)
    return None if floor is None else round(1 + (floor - 1) * share, 2)


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
