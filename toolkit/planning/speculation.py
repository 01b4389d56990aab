"""K, what evidence says of it, and the words in which vLLM takes speculation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from toolkit.catalog.models import Drafter
from toolkit.errors import UserError
from toolkit.findings import Finding, error, note, warning
from toolkit.planning.better import better_words
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.drafters import Chosen
from toolkit.planning.models import Options, Speculation, Weights
from toolkit.planning.speeds import Comparison, Estimate
from toolkit.planning.verdict import Verdict
from toolkit.planning.words import at_a_time

_WORTH_A_WORD = 0.95
"""Below this share of the fastest K's speed, the user's own K is worth a word."""


def check_k(options: Options) -> None:
    """Raise UserError for a K that cannot be."""
    if options.k is not None and options.k < 1:
        raise UserError(
            f"K must be at least 1, not {options.k}",
            "use --no-speculation to serve the target alone",
        )


def choose_k(options: Options, drafter: Drafter, own: bool, verdict: Verdict) -> Choice[int]:
    """Tokens drafted per step: the user's, the fastest measured, else the card's.

    Above the training is a finding. ``own`` is whether it is the user's own head, of which only
    the catalogue's like is known.
    """
    if options.k is not None:
        return Choice(options.k, findings=_beyond_training(options.k, drafter))
    if verdict.compared is not None:
        return chosen(verdict.k, "k", _fastest(verdict.compared, verdict.speed is not None))
    because = f"recommended for {drafter.title} ({drafter.source})"
    if own:
        because = f"no card known for your own head; K as recommended for {drafter.source}"
    return chosen(drafter.k_recommended, "k", because)


def _fastest(compared: Comparison, at_this_load: bool) -> str:
    best = compared.fastest
    others = [estimate for k, estimate in sorted(compared.by_k.items()) if k != best.k]
    at = f"at {at_a_time(best.load)}"
    if not at_this_load:
        at += ", the nearest load that was measured"
    speed = f"{best.tokens_per_second:,.0f} tokens/s {at}"
    if not others:
        return f"the only K that was measured: {speed} ({best.source})"
    slower = ", ".join(f"{e.tokens_per_second:,.0f} with K={e.k}" for e in others)
    return f"the fastest that was measured: {speed}, {slower} ({best.source})"


def without_speculation(pair: Chosen, verdict: Verdict) -> Choice[Chosen]:
    """The pair without its drafter, because evidence says that it loses there."""
    alone = replace(pair, drafter=None)
    because = "evidence says that the target alone is faster at this load; see the findings"
    reasons = chosen(alone, "drafter", because, shown="none").reasons
    return Choice(alone, reasons, speculation_findings(pair, verdict))


def speculation_findings(pair: Chosen, verdict: Verdict) -> tuple[Finding, ...]:
    """What evidence has to say against this drafter or this K on that GPU at that load."""
    if pair.drafter is None or verdict.compared is None:
        return ()
    best, alone = verdict.compared.fastest, verdict.compared.alone
    if verdict.loses and alone is not None:
        message = (
            f"at {at_a_time(best.load)} {pair.target.title} alone makes "
            f"{alone.tokens_per_second:,.0f} tokens/s, and {best.tokens_per_second:,.0f} at best "
            f"(K={best.k}) with {pair.drafter.title}: {best.source}"
        )
        fix = _instead(pair, pair.drafter, alone, planned=verdict.drafter is not None)
        return (warning("speculation-loses", "drafter", message, fix),)
    speed = verdict.speed
    if speed is None or speed.tokens_per_second >= _WORTH_A_WORD * best.tokens_per_second:
        return ()
    message = (
        f"K={speed.k} makes {speed.tokens_per_second:,.0f} tokens/s at {at_a_time(best.load)}, "
        f"and K={best.k} {best.tokens_per_second:,.0f}: {best.source}"
    )
    return (note("k-below-fastest", "k", message, f"use --k {best.k}, or leave --k out"),)


def _instead(pair: Chosen, loser: Drafter, alone: Estimate, *, planned: bool) -> str:
    """What to use instead of a drafter that loses, with the speeds that evidence has of it."""
    better = [*better_words(pair.target, loser, alone)]
    if planned:
        without = f"--no-speculation ({alone.tokens_per_second:,.0f} tokens/s)"
        choices = " or ".join([*better, without])
        return f"use {choices}, unless your requests are more predictable"
    faster = "".join(f"; faster: {words}" for words in better)
    name = f"{pair.target.short_name}+{loser.name}"
    return (
        f"planned without speculation{faster}; to speculate all the same, name {name}, or give --k"
    )


def _beyond_training(k: int, drafter: Drafter) -> tuple[Finding, ...]:
    if drafter.k_trained is not None and k > drafter.k_trained:
        message = f"K={k} is more than the {drafter.k_trained} that {drafter.title} was trained for"
        fix = f"use --k {drafter.k_trained} or less; {drafter.k_recommended} is recommended"
        return (error("k-above-trained", "k", message, fix),)
    unknown = drafter.k_trained is None and drafter.parallel_drafting
    if unknown and k != drafter.k_recommended:
        message = f"it is not known which K {drafter.title} was trained for"
        fix = f"if few drafts are accepted, try --k {drafter.k_recommended}"
        return (note("k-training-unknown", "k", message, fix),)
    return ()


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
    """The catalogue's floor is that of the recommended K; for a smaller one it is lower.

    Later positions are never accepted more often than earlier ones, so the first K of N accept at
    least K/N of what all N do.
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
