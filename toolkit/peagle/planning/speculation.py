"""Whether to speculate, with which drafter and K, and how vLLM is configured for it.

``with_speculation`` changes that of a finished plan, for example its K, without planning again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.catalog.schema import Drafter
from peagle.errors import Fix, OutOfRange, UserError
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


def check_k(options: Options) -> None:
    """Raise UserError for a K below 1."""
    if options.k is not None and options.k < 1:
        raise OutOfRange(
            f"K must be at least 1, not {options.k}",
            "use --no-speculation to serve the target alone",
        )


def is_drafter_named(options: Options) -> bool:
    """Whether the user decides whether, or with what, to speculate."""
    named = "+" in options.pair or options.drafter is not None or options.k is not None
    return named or not options.speculation


def other_drafters(
    options: Options, pair: SelectedPair, vllm: str, max_model_len: int, request_tokens: int
) -> tuple[Drafter | None, ...]:
    """What is compared with the pair's drafter: no speculation, and the target's public drafters
    that run with this vLLM and this context; nothing if the user named the drafter."""
    if pair.drafter is None or is_drafter_named(options):
        return ()
    usable = (
        drafter
        for drafter in pair.target.drafters
        if drafter.public
        and drafter.weights is not None
        and drafter != pair.drafter
        and versions.compare(vllm, drafter.min_vllm) >= 0
        and not _fails(drafter, vllm)
        and (drafter.max_positions is None or request_tokens <= drafter.max_positions)
        and not is_for_shorter(drafter, max_model_len, request_tokens)
    )
    return (None, *usable)


def _fails(drafter: Drafter, vllm: str) -> bool:
    return any(
        problem.level == "error" and (not problem.vllm or versions.in_range(vllm, problem.vllm))
        for problem in drafter.problems
    )


@dataclass(frozen=True)
class SpeedsByK:
    """The performance of one engine at ``load`` with each drafter, by name, and K."""

    load: float
    speeds: Mapping[tuple[str | None, int], Performance]

    @property
    def alone(self) -> float | None:
        """Tokens per second of the target alone; ``None`` if unknown."""
        return self.by_k(None).get(0)

    def by_k(self, drafter: Drafter | None) -> dict[int, float]:
        """Tokens per second with this drafter by K, where known; only measured ones if any is."""
        name = drafter.name if drafter else None
        speeds = {
            k: (speed.tokens_per_second, speed.basis == "measured")
            for (drafter_name, k), speed in self.speeds.items()
            if drafter_name == name and speed.tokens_per_second is not None
        }
        some = any(measured for _, measured in speeds.values())
        return {k: speed for k, (speed, measured) in speeds.items() if measured or not some}

    def fastest_k(self, drafter: Drafter | None) -> int | None:
        """The smallest of the K with the most tokens per second; ``None`` if none is known."""
        by_k = self.by_k(drafter)
        return min(by_k, key=lambda k: (-by_k[k], k)) if by_k else None


def k_decision(
    options: Options, drafter: Drafter, is_own: bool, k: int, compared: SpeedsByK
) -> Decision[int]:
    """The chosen K with the reason for the choice: the user's, the fastest, or the recommended one.

    ``is_own``: the drafter is the user's own head, whose model card is known only if it is a copy.
    """
    if options.k is not None:
        return Decision(options.k)
    by_k = compared.by_k(drafter)
    if k in by_k:
        basis = compared.speeds[drafter.name, k].basis
        fastest = max(by_k, key=lambda n: (by_k[n], -n))
        shown = sorted({n for n in by_k if n in _SHOWN_KS or n == fastest} - {k})
        others = ", ".join(f"{by_k[n]:,.0f} with K={n}" for n in shown)
        which = "the fastest" if by_k[k] >= by_k[fastest] else "the smallest that is as fast"
        because = f"{which} ({basis}): {by_k[k]:,.0f} tokens/s with "
        because += format_concurrency(round(compared.load, 1))
        because += f", {others}" if others else ""
    elif is_own:
        because = f"recommended for {drafter.source}"
        if drafter.licence is None:  # only a copy of the catalogue's head has one
            because = f"the model card of your head is unknown; {because}"
    else:
        because = f"recommended for {drafter.title} ({drafter.source})"
    return decide(k, "k", because)


def speculation_findings(
    options: Options, pair: SelectedPair, k: int, compared: SpeedsByK
) -> Iterator[Finding]:
    """Against the drafter or K that the user named: what is faster on the same GPUs."""
    drafter, best = pair.drafter, compared.fastest_k(pair.drafter)
    if drafter is None or best is None or not is_drafter_named(options):
        return
    speed, alone = compared.speeds[drafter.name, best], compared.alone
    by_k, origin = compared.by_k(drafter), f"{speed.basis}, {speed.source}"
    if alone is not None and alone > by_k[best]:
        message = (
            f"with {format_concurrency(compared.load)}, {pair.target.title} reaches {alone:,.0f} "
            f"tokens/s alone and {by_k[best]:,.0f} at best (K={best}) with {drafter.title}: "
            f"{origin}"
        )
        fix = "use --no-speculation, unless your requests are more predictable"
        yield warning("speculation-loses", "drafter", message, fix)
    elif k in by_k and by_k[k] < _CLOSE_TO_FASTEST * by_k[best]:
        message = (
            f"K={k} reaches {by_k[k]:,.0f} tokens/s with {format_concurrency(compared.load)}, "
            f"K={best} {by_k[best]:,.0f}: {origin}"
        )
        faster = Fix(f"use --k {best}, or leave --k out", options=("--k", f"{best}"))
        yield note("k-below-fastest", "k", message, faster)


def planned_speculation(load: Load, candidate: Candidate) -> Decision[Speculation | None]:
    """The candidate's speculation with the floor of its proof: the catalogue's, else the acceptance
    length above which it is faster than the target alone, with its requests on its GPUs.

    Without a floor where the speed is not known, and where the drafter is not expected to reach
    that length: findings of the plan report it, and a proof could only fail. Where the K is above
    all with a known acceptance, a reason says that length.
    """
    drafter, k = candidate.drafter, candidate.k
    if drafter is None:
        return Decision(None)
    floor = floor_of(drafter, k)
    source: FloorSource = "catalogue"
    length = None
    if floor is None or candidate.performance.extrapolated:
        length = _break_even(load, candidate)
    if floor is None and length is not None:
        acceptance = load.acceptance(drafter, k)
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
    if not candidate.performance.extrapolated:
        return Decision(speculation)
    value, because = "unknown", "the speed with the drafter or without it is unknown here"
    if length is not None and length > k + 1:
        value, because = "none", f"the target alone is faster even if all {k} drafts count"
    elif length is not None:
        value, because = f"{length:g} tokens per step", "with fewer, the target alone is faster"
    return decide(speculation, "break_even", because, shown=value)


def _break_even(load: Load, candidate: Candidate) -> float | None:
    requests, k = load.concurrency / candidate.busy, candidate.k
    alone = load.engine(candidate.instance, candidate.gpus, None, 0)
    drafting = load.performance(
        candidate.engine, candidate.drafter, k, requests,
        assumed=likely_acceptance(load.acceptance(candidate.drafter, k), k),
    )  # fmt: skip
    target = load.performance(alone, None, 0, requests)
    length = break_even_length(drafting, target, load.workload, requests)
    return None if length is None else round(length, 2)


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
