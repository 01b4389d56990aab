"""K, and the words in which vLLM takes speculation."""

from __future__ import annotations

import json
from typing import Any

from toolkit.catalog.models import Drafter
from toolkit.errors import UserError
from toolkit.findings import Finding, error, note
from toolkit.planning.choice import Choice, chosen
from toolkit.planning.models import Options, Speculation, Weights


def choose_k(options: Options, drafter: Drafter, own: bool) -> Choice[int]:
    """Tokens drafted per step. Raises UserError below 1; above the training is a finding.

    ``own`` is whether it is the user's own head, of which only the catalogue's like is known.
    """
    if options.k is None:
        because = f"recommended for {drafter.title} ({drafter.source})"
        if own:
            because = f"no card known for your own head; K as recommended for {drafter.source}"
        return chosen(drafter.k_recommended, "k", because)
    if options.k < 1:
        raise UserError(
            f"K must be at least 1, not {options.k}",
            "use --no-speculation to serve the target alone",
        )
    return Choice(options.k, findings=_beyond_training(options.k, drafter))


def _beyond_training(k: int, drafter: Drafter) -> tuple[Finding, ...]:
    if drafter.k_trained is not None and k > drafter.k_trained:
        message = f"K={k} is more than the {drafter.k_trained} that {drafter.title} was trained for"
        fix = f"use --k {drafter.k_trained} or less; {drafter.k_recommended} is recommended"
        return (error("k-above-trained", "k", message, fix),)
    if drafter.k_trained is None and drafter.parallel_drafting:
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
