"""The sentences about candidates: why one was chosen, what it costs, and how fast it is.

Plan files keep reasons as text, so they are made here, from the candidates that were compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from peagle.options import Options
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate, cheapest_of
from peagle.planning.plan import Reason
from peagle.planning.speculation import SpeedsByK
from peagle.text import basis_text, format_requests, format_usd


def instances_text(candidate: Candidate) -> str:
    """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
    name = candidate.instance.type
    return f"{candidate.count} x {name}" if candidate.count > 1 else name


def cost_text(candidate: Candidate) -> str:
    """``at $4.20 an hour``, for all instances; empty if the price is unknown."""
    if candidate.usd_per_hour is None:
        return ""
    together = f" for {candidate.count}" if candidate.count > 1 else ""
    return f"at {format_usd(candidate.usd_per_hour)} an hour{together}"


def at_cost(candidate: Candidate) -> str:
    """The same after a space."""
    return f" {cost_text(candidate)}".rstrip()


def token_cost_text(usd: float) -> str:
    """``$0.12 per million output tokens``."""
    return f"{format_usd(usd)} per million output tokens"


def speed_text(candidate: Candidate) -> str:
    """``900 tokens/s measured``, ``900 tokens/s estimated (600 to 1,200)``; of several instances
    ``900 tokens/s, 2 times one measured instance``."""
    if candidate.tokens_per_second is None:
        return "speed unknown"
    speed, unit = candidate.performance, "instance" if candidate.copies == 1 else "copy"
    text = f"{candidate.tokens_per_second:,.0f} tokens/s"
    text += basis_text(speed.basis, candidate.busy, unit)
    low, high = candidate.total(speed.low), candidate.total(speed.high)
    if speed.basis == "measured" or low is None or high is None:
        return text
    return f"{text} ({low:,.0f} to {high:,.0f})"


def instance_reason(candidate: Candidate, ranked: Sequence[Candidate]) -> Reason:
    """Why this type: by cost per token or price, among those that are as good otherwise."""

    def apart_from_cost(peer: Candidate) -> tuple[bool, ...]:
        return peer.holds_load, peer.affordable, peer.meets, peer.excess is None

    asked, usd = candidate.asked, candidate.usd_per_million_tokens
    cost = cost_text(candidate) or "price unknown"
    peers = sum(apart_from_cost(other) == apart_from_cost(candidate) for other in ranked)
    which = " for this load" if candidate.holds_load else ""
    if asked.min_tokens_per_second or asked.slo or asked.within:
        which += f", {'' if candidate.meets else 'not '}known to meet what is required"
    types = f"{peers} types that fit{which}"
    speeds = [other.tokens_per_second for other in ranked if other.usd_per_hour is not None]
    if candidate.excess is not None and not candidate.meets:
        because = f"the nearest to what is required, {cost}"
    elif peers == 1:
        because = f"the only type that fits{which}; {cost}"
    elif usd is not None and None not in speeds:
        cost = f"{token_cost_text(usd)}, {cost}"
        because = f"the lowest cost of {types}: {cost}"
        if any((other.usd_per_million_tokens or usd) < usd for other in ranked):
            because = (
                f"about the lowest cost of {types}: {cost}; costs within "
                f"{SAME_COST_FACTOR * 100 - 100:.0f} % count as equal, and it has the lowest price "
                "per hour"
            )
    elif candidate.usd_per_hour is None:
        because = f"one of {types}; no prices known"
    else:
        because = f"the cheapest of {types}; {cost}"
    return Reason(what="instance_type", value=candidate.instance.type, because=because)


def gpus_reason(candidate: Candidate) -> Reason:
    """Why an engine runs on this many GPUs."""
    size, count, basis = candidate.gpus, candidate.instance.gpu_count, candidate.performance.basis
    if count == 1:
        because = "the instance has one GPU"
    elif not candidate.fit.fits:
        because = "needs the least additional memory"
    elif not candidate.holds_load:
        because = f"holds the most requests on the {count} GPUs"
    elif basis != "unknown":
        because = f"the fastest on up to {count} GPUs ({basis})"
    elif size == 1:
        because = (
            f"one of the {count} GPUs holds the load; tensor parallelism would add communication"
        )
    else:
        because = (
            f"the fewest of the {count} GPUs that hold the load and divide the attention heads"
        )
    return Reason(what="tensor_parallel_size", value=str(size), because=because)


def reason_without(best: Candidate) -> Reason:
    """What would be chosen without speculation if the user had not named another type."""
    because = cost_text(best).removeprefix("at ") or "price unknown"
    if best.usd_per_million_tokens is not None:
        because += f", {token_cost_text(best.usd_per_million_tokens)}"
    what = "instance_without_speculation"
    return Reason(what=what, value=instances_text(best), because=because)


def count_text(options: Options, candidate: Candidate) -> str:
    """Why so many instances."""
    held = candidate.engine.most_requests * candidate.copies
    if candidate.count == 1:
        return "one instance serves the load"
    if options.within is not None:
        return "fewer do not finish in time"
    if candidate.count == options.min_instances:
        return "--min-instances"
    if candidate.count == options.max_instances and not candidate.holds_load:
        return "--max-instances; the load needs more"
    if held * (candidate.count - 1) < candidate.load * candidate.engines:
        return f"the KV cache of one is enough for {format_requests(held)} of this load"
    return f"one is too slow; together they reach {speed_text(candidate)}"


def copies_text(candidate: Candidate) -> str:
    """Why so many copies of the engine."""
    size, usd = candidate.gpus, candidate.usd_per_million_tokens
    used = f"{candidate.copies * size} of the {candidate.instance.gpu_count} GPUs"
    because = f"with {size} GPU{'' if size == 1 else 's'} each they use {used}"
    return because if usd is None else f"{because}, at {token_cost_text(usd)}"


def speculation_reason(
    candidate: Candidate,
    unknown: Candidate | None,
    speculating: Sequence[Candidate],
    alone: Sequence[Candidate],
    compared: SpeedsByK,
) -> Reason:
    """What speculation changes: the cost per output token, else the speed.

    ``unknown`` is what was not planned since its speed is unknown; ``speculating`` and ``alone``
    are all that fit with a drafter and without, best first.
    """
    if unknown is not None:
        because = _not_known(unknown, candidate, alone)
    else:
        others = alone if candidate.drafter is not None else speculating
        because = _costs(candidate, others) or _speeds(candidate, compared)
        because = because or _default(candidate, bool(speculating))
    value = f"{candidate.drafter.name}, K={candidate.k}" if candidate.drafter else "none"
    return Reason(what="speculation", value=value, because=because)


def is_cheaper(candidate: Candidate, other: Candidate) -> bool:
    """Whether it has the lower price per hour; any is lower than an unknown one."""
    if candidate.usd_per_hour is None:
        return False
    return other.usd_per_hour is None or candidate.usd_per_hour < other.usd_per_hour


def _not_known(unknown: Candidate, planned: Candidate, alone: Sequence[Candidate]) -> str:
    asked, name = unknown.asked, unknown.drafter.name if unknown.drafter else "none"
    cheapest, which = planned, "it"
    if asked.instance_type is None:
        cheapest, which = cheapest_of(alone) or planned, "the cheapest plan with it"
    because = f"the speed with {name} is unknown here"
    if not is_cheaper(cheapest, unknown):
        required = asked.slo or asked.min_tokens_per_second or asked.within
        doubt = "so it may not reach what is required" if required else "that without is known"
        return f"{because}, {doubt}; --drafter {name} plans it"
    costs = "has no known price"
    if unknown.usd_per_hour is not None:
        costs = f"costs {format_usd(unknown.usd_per_hour)} per hour"
    usd = f"{format_usd(cheapest.usd_per_hour or 0)} without ({instances_text(cheapest)})"
    return f"{because}, and {which} {costs} ({instances_text(unknown)}), {usd}"


def _costs(candidate: Candidate, others: Sequence[Candidate]) -> str:
    """Costs per token of the candidate and of the best of the others; empty where unknown."""
    ours = candidate.usd_per_million_tokens
    theirs = others[0].usd_per_million_tokens if others and others[0].holds_load else None
    if ours is None or theirs is None:
        return ""
    best, here, there = others[0], "with it", "without"
    if candidate.drafter is None:
        here, there = "without", f"with {best.drafter.name if best.drafter else 'none'}"
    if instances_text(best) != instances_text(candidate):
        there += f" on {instances_text(best)}"
    text = f"{token_cost_text(ours)} {here}, {format_usd(theirs)} {there}"
    misses = candidate.meets and not best.meets
    return f"{text}, which is not known to meet what is required" if misses else text


def _speeds(candidate: Candidate, compared: SpeedsByK) -> str:
    """Speeds of all instances with and without speculation; empty where one is unknown."""
    speculates = candidate.drafter is not None
    others = [
        (speed.tokens_per_second, name)
        for (name, _), speed in compared.speeds.items()
        if (name is None) is speculates and speed.tokens_per_second is not None
    ]
    if candidate.tokens_per_second is None or not others:
        return ""
    fastest, name = max(others, key=lambda speed: speed[0])
    here, there = ("with it", "without") if speculates else ("without", f"with {name}")
    ours, theirs = candidate.tokens_per_second, candidate.total(fastest) or 0
    return f"{ours:,.0f} tokens/s {here}, {theirs:,.0f} {there}, on the same GPUs"


def _default(candidate: Candidate, speculating: bool) -> str:
    asked = candidate.asked
    is_named = asked.drafter is not None or "+" in asked.pair
    usual = "the drafter that you name" if is_named else "the catalogue's default"
    if candidate.drafter is None and not speculating:
        return f"{usual} does not fit in addition to the target"
    return f"{asked.chosen_by or usual}; its speed here is unknown"
