"""Whether to speculate, with which drafter and K, and how vLLM is configured for it.

``with_speculation`` changes that of a finished plan, for example its K, without planning again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from peagle.catalog.schema import Drafter
from peagle.errors import Fix, UserError
from peagle.findings import Finding, note, warning
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.drafter import SelectedPair, is_for_shorter
from peagle.planning.engines import Load
from peagle.planning.plan import Decision, FloorSource, Plan, Speculation, Weights, decide
from peagle.speed.estimate import break_even_length
from peagle.speed.models import Acceptance, Performance
from peagle.text import format_concurrency
from peagle.vllm import versions
from peagle_serve.contract import SPECULATION

SpeedsByK = Mapping[tuple[str | None, int], Performance]
"""The performance of one engine at a load with each drafter, by name, and K."""

_SHOWN_KS = (1, 2, 3, 5, 7, 10)
"""Shown for comparison in the reason of K, in addition to the fastest."""

_CLOSE_TO_FASTEST = 0.95
"""Below this share of the fastest K's speed, the user's own K gets a note."""

LIKELY_LENGTH = 2.0
"""Tokens per step that a drafter without a known acceptance is assumed to make, to find its
break-even length, which hardly depends on it."""

_CONFIG_FLAG = "--speculative-config"


def usual_k(options: Options, drafter: Drafter | None) -> int:
    """The user's K, else the recommended one; 0 without a drafter."""
    if drafter is None:
        return 0
    return drafter.k_recommended if options.k is None else options.k


def is_drafter_named(options: Options) -> bool:
    """Whether the user decides whether, or with what, to speculate."""
    named = "+" in options.pair or options.drafter is not None or options.k is not None
    return named or not options.speculation


def other_drafters(options: Options, pair: SelectedPair, load: Load) -> tuple[Drafter | None, ...]:
    """What is compared with the pair's drafter: no speculation, and the target's public drafters
    that run with this vLLM and this context and whose speed can be known; nothing if the user named
    the drafter."""
    if pair.drafter is None or is_drafter_named(options):
        return ()
    vllm, tokens = load.vllm, load.workload.tokens
    usable = [
        drafter
        for drafter in pair.target.drafters
        if drafter.public
        and drafter.weights is not None
        and drafter != pair.drafter
        and versions.compare(vllm, drafter.min_vllm) >= 0
        and not any(
            problem.level == "error" and (not problem.vllm or versions.in_range(vllm, problem.vllm))
            for problem in drafter.problems
        )
        and (drafter.max_positions is None or tokens <= drafter.max_positions)
        and not is_for_shorter(drafter, load.max_model_len, tokens)
    ]
    return tuple(drafter for drafter in (None, *usable) if load.may_know(drafter))


def choose_k(
    options: Options, pair: SelectedPair, candidate: Candidate, compared: SpeedsByK, requests: float
) -> Decision[int]:
    """The chosen K: the user's, the fastest, or the recommended one; ``compared`` has the speeds on
    the candidate's GPUs with so many concurrent ``requests``.

    Findings say what is faster there than the drafter or the K that the user named.
    """
    drafter, k = pair.drafter, candidate.k
    if drafter is None:
        return Decision(0)
    known = {key: speed for key, speed in compared.items() if speed.tokens_per_second is not None}
    by_k = {k: speed for (name, k), speed in known.items() if name == drafter.name}
    if any(speed.basis == "measured" for speed in by_k.values()):
        by_k = {k: speed for k, speed in by_k.items() if speed.basis == "measured"}
    rates = {k: speed.tokens_per_second or 0.0 for k, speed in by_k.items()}
    best = min(rates, key=lambda k: (-rates[k], k), default=0)
    load, findings = format_concurrency(round(requests, 1)), list[Finding]()
    if best and is_drafter_named(options):
        without = known.get((None, 0))
        alone = (without.tokens_per_second or 0.0) if without else 0.0
        origin = f"{by_k[best].basis}, {by_k[best].source}"
        if alone > rates[best]:
            message = (
                f"with {load}, {pair.target.title} reaches {alone:,.0f} tokens/s alone and "
                f"{rates[best]:,.0f} at best (K={best}) with {drafter.title}: {origin}"
            )
            fix = "use --no-speculation, unless your requests are more predictable"
            findings.append(warning("speculation-loses", "drafter", message, fix))
        elif k in rates and rates[k] < _CLOSE_TO_FASTEST * rates[best]:
            message = (
                f"K={k} reaches {rates[k]:,.0f} tokens/s with {load}, K={best} "
                f"{rates[best]:,.0f}: {origin}"
            )
            faster = Fix(f"use --k {best}, or leave --k out", options=("--k", f"{best}"))
            findings.append(note("k-below-fastest", "k", message, faster))
    if options.k is not None:
        return Decision(k, findings=tuple(findings))
    if k in rates:
        shown = sorted({n for n in rates if n in _SHOWN_KS or n == best} - {k})
        which = "the fastest" if rates[k] >= rates[best] else "the smallest that is as fast"
        because = f"{which} ({by_k[k].basis}): {rates[k]:,.0f} tokens/s with {load}"
        because += "".join(f", {rates[n]:,.0f} with K={n}" for n in shown)
    elif pair.own is not None:
        because = f"recommended for {drafter.source}"
        if drafter.licence is None:  # only a copy of the catalogue's head has one
            because = f"the model card of your head is unknown; {because}"
    else:
        because = f"recommended for {drafter.title} ({drafter.source})"
    return decide(k, "k", because, findings=findings)


def planned_speculation(load: Load, candidate: Candidate) -> Decision[Speculation | None]:
    """The candidate's speculation with the floor of its proof: the catalogue's, else the acceptance
    length above which it is faster than the target alone, with its requests on its GPUs.

    Without a floor where the speed is not known, and where the drafter is not expected to reach
    that length: findings of the plan report it, and a proof could only fail. Where the K is above
    all with a known acceptance, a reason says that length.
    """
    drafter, k, length = candidate.drafter, candidate.k, None
    if drafter is None:
        return Decision(None)
    floor = floor_of(drafter, k)
    source: FloorSource = "catalogue"
    extrapolated = candidate.performance.extrapolated
    if floor is None or extrapolated:
        requests, acceptance = load.concurrency / candidate.busy, load.acceptance(drafter, k)
        assumed = likely_acceptance(acceptance, k)
        drafting = load.performance(candidate.engine, drafter, k, requests, assumed=assumed)
        engine = load.engine(candidate.instance, candidate.gpus, None, 0)
        alone = load.performance(engine, None, 0, requests)
        length = break_even_length(drafting, alone, load.workload, requests)
        length = None if length is None else round(length, 2)
        if floor is None and length is not None:
            source = "break-even"
            most = k + 1 if acceptance.basis == "unknown" else acceptance.length
            floor = length if 1 < length <= most else None
    speculation = Speculation(
        method=drafter.method,
        parallel_drafting=drafter.parallel_drafting,
        k=k,
        settings=dict(drafter.speculative_settings),
        acceptance_floor=floor,
        acceptance_floor_source=None if floor is None else source,
    )
    if not extrapolated:
        return Decision(speculation)
    value, because = "unknown", "the speed with the drafter or without it is unknown here"
    if length is not None and length > k + 1:
        value, because = "none", f"the target alone is faster even if all {k} drafts count"
    elif length is not None:
        value, because = f"{length:g} tokens per step", "with fewer, the target alone is faster"
    return decide(speculation, "break_even", because, value)


def likely_acceptance(acceptance: Acceptance, k: int) -> Acceptance:
    """What is assumed of a drafter of which no acceptance is known."""
    if acceptance.basis != "unknown":
        return acceptance
    return Acceptance(min(LIKELY_LENGTH, k + 1), "assumed", "assumed: none is known")


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


def with_speculation(plan: Plan, speculation: Speculation | None) -> Plan:
    """The plan with this speculation of its drafter, or of its target alone, in the engine's
    arguments and environment too.

    Instance, memory and speeds stay those of ``plan``. Raises UserError for a plan without a
    drafter.
    """
    if plan.speculation is None:
        raise UserError(f"{plan.pair} has no drafter", "choose a pair with one", "no-plan")
    arguments = list(plan.engine_arguments)
    at = arguments.index(_CONFIG_FLAG)
    environment = {name: value for name, value in plan.environment.items() if name != SPECULATION}
    changed: dict[str, Any] = {"speculation": speculation}
    if speculation is None:
        changed |= {"drafter": None, "pair": plan.target.id}
        del arguments[at : at + 2]
    else:
        config = speculative_config(speculation, plan.drafter.weights if plan.drafter else None)
        arguments[at + 1] = environment[SPECULATION] = config
    return plan.model_copy(
        update={**changed, "environment": environment, "engine_arguments": tuple(arguments)}
    )


def without_floor(plan: Plan) -> Plan:
    """The plan without an acceptance floor, for a measurement: a low acceptance is a result."""
    if plan.speculation is None:
        return plan
    none = {"acceptance_floor": None, "acceptance_floor_source": None}
    return plan.model_copy(update={"speculation": plan.speculation.model_copy(update=none)})
