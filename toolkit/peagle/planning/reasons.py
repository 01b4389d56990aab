"""The sentences about candidates: why one was chosen, what it costs, and how fast it is.

Plan files keep reasons as text, so they are made here, from the candidates that were compared.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.options import Options
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate, cheapest_of
from peagle.planning.plan import Copies, Decision, Reason, decide
from peagle.planning.scaling import reserved
from peagle.planning.search import Selection, is_cheaper
from peagle.planning.speculation import SpeedsByK
from peagle.text import basis_text, format_requests, format_usd


def instances_text(candidate: Candidate) -> str:
    """``ml.g6.xlarge``, or ``2 x ml.g6.xlarge``."""
    name = candidate.instance.type
    return f"{candidate.count} x {name}" if candidate.count > 1 else name


def at_cost(candidate: Candidate) -> str:
    """`` at $4.20 an hour``, for all instances; empty if the price is unknown."""
    if candidate.usd_per_hour is None:
        return ""
    together = f" for {candidate.count}" if candidate.count > 1 else ""
    return f" at {format_usd(candidate.usd_per_hour)} an hour{together}"


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


def selection_reasons(
    selection: Selection, compared: SpeedsByK, is_speculation_asked: bool
) -> Iterator[Reason]:
    """Why this type, so many GPUs, and speculation or none."""
    candidate = selection.candidate
    name, usd = candidate.instance.type, candidate.usd_per_million_tokens
    if not selection.ranked and candidate.asked.instance_type is None:
        because = "the largest in the catalogue, since none fits"
        yield Reason(what="instance_type", value=name, because=because)
        return
    if candidate.asked.instance_type is None:
        because = _why_instance(selection)
        yield Reason(what="instance_type", value=name, because=because)
    yield Reason(
        what="tensor_parallel_size", value=f"{candidate.gpus}", because=_why_gpus(candidate)
    )
    best = selection.best_alone
    if best is not None and best.instance != selection.alone[0].instance:
        because = at_cost(best).removeprefix(" at ") or "price unknown"
        if (usd := best.usd_per_million_tokens) is not None:
            because += f", {token_cost_text(usd)}"
        what = "instance_without_speculation"
        yield Reason(what=what, value=instances_text(best), because=because)
    if is_speculation_asked:
        value = f"{candidate.drafter.name}, K={candidate.k}" if candidate.drafter else "none"
        because = _why_speculation(selection, compared)
        yield Reason(what="speculation", value=value, because=because)


def _why_instance(selection: Selection) -> str:
    """By cost per token or price, among those that are as good otherwise."""
    candidate, ranked = selection.candidate, selection.ranked

    def apart_from_cost(peer: Candidate) -> tuple[bool, ...]:
        return peer.holds_load, peer.affordable, peer.meets, peer.excess is None

    asked, usd = candidate.asked, candidate.usd_per_million_tokens
    cost = at_cost(candidate).strip() or "price unknown"
    if candidate.excess is not None and not candidate.meets:
        return f"the nearest to what is required, {cost}"
    peers = sum(apart_from_cost(other) == apart_from_cost(candidate) for other in ranked)
    which = " for this load" if candidate.holds_load else ""
    if asked.min_tokens_per_second or asked.slo or asked.within:
        which += f", {'' if candidate.meets else 'not '}known to meet what is required"
    if peers == 1:
        return f"the only type that fits{which}; {cost}"
    types = f"{peers} types that fit{which}"
    speeds = [other.tokens_per_second for other in ranked if other.usd_per_hour is not None]
    if usd is None or None in speeds:
        return f"the cheapest of {types}; {cost}"
    cost = f"{types}: {token_cost_text(usd)}, {cost}"
    if all((other.usd_per_million_tokens or usd) >= usd for other in ranked):
        return f"the lowest cost of {cost}"
    return (
        f"about the lowest cost of {cost}; costs within {SAME_COST_FACTOR * 100 - 100:.0f} % "
        "count as equal, and it has the lowest price per hour"
    )


def _why_gpus(candidate: Candidate) -> str:
    count, basis = candidate.instance.gpu_count, candidate.performance.basis
    if count == 1:
        return "the instance has one GPU"
    if not candidate.fit.fits:
        return "needs the least additional memory"
    if basis != "unknown":
        return f"the fastest on up to {count} GPUs ({basis})"
    return f"the fewest of the {count} GPUs that hold the load and divide the attention heads"


def _why_speculation(selection: Selection, compared: SpeedsByK) -> str:
    """What speculation changes: the cost per output token, else the speed."""
    candidate, unknown, asked = selection.candidate, selection.unknown, selection.candidate.asked
    drafter = candidate.drafter
    if unknown is not None:
        name = unknown.drafter.name if unknown.drafter else "none"
        because = f"the speed with {name} is unknown here"
        cheapest = candidate
        if asked.instance_type is None:
            cheapest = cheapest_of(selection.alone) or candidate
        if not is_cheaper(cheapest, unknown):
            return f"{because}, that without is known; --drafter {name} plans it"
        ours, theirs = (at_cost(each) or " at no known price" for each in (cheapest, unknown))
        return (
            f"{because}, and it needs {instances_text(unknown)}{theirs}; without it, "
            f"{instances_text(cheapest)}{ours} is enough"
        )
    others = selection.alone if drafter else selection.speculating
    best = others[0] if others and others[0].holds_load else None
    ours_usd = candidate.usd_per_million_tokens
    here, there = "with it", "without"
    if best is not None and ours_usd is not None and best.usd_per_million_tokens is not None:
        if drafter is None:
            here, there = "without", f"with {best.drafter.name if best.drafter else 'none'}"
        if instances_text(best) != instances_text(candidate):
            there += f" on {instances_text(best)}"
        if candidate.meets and not best.meets:
            there += ", which is not known to meet what is required"
        return (
            f"{token_cost_text(ours_usd)} {here}, {format_usd(best.usd_per_million_tokens)} {there}"
        )
    speeds = [
        (speed.tokens_per_second, name)
        for (name, _), speed in compared.items()
        if (name is None) is (drafter is not None) and speed.tokens_per_second is not None
    ]
    if candidate.tokens_per_second is not None and speeds:
        fastest, other = max(speeds, key=lambda speed: speed[0])
        if drafter is None:
            here, there = "without", f"with {other}"
        theirs = f"{candidate.total(fastest) or 0:,.0f} {there}"
        return f"{candidate.tokens_per_second:,.0f} tokens/s {here}, {theirs}, on the same GPUs"
    if drafter is None and not selection.speculating:
        return "the drafter does not fit in addition to the target"
    is_named = asked.drafter is not None or "+" in asked.pair
    usual = "the drafter that you name" if is_named else "the catalogue's default"
    return f"{asked.chosen_by or usual}; its speed here is unknown"


def count_decision(options: Options, candidate: Candidate) -> Decision[int]:
    """The number of instances."""
    count, held = candidate.count, candidate.engine.most_requests * candidate.copies
    if options.instance_count is not None:
        return Decision(options.instance_count)
    because = f"fewer are too slow; together they reach {speed_text(candidate)}"
    if count == 1:
        because = "one instance serves the load"
    elif options.within is not None:
        because = "fewer do not finish in time"
    elif count in (options.min_instances, options.max_instances):
        because = "the bound of --min-instances and --max-instances"
    elif held * (count - 1) < candidate.load * candidate.engines:
        because = f"the KV cache of one is enough for {format_requests(held)} of this load"
    return decide(count, "instance_count", because)


def copies_decision(options: Options, candidate: Candidate) -> Decision[Copies | None]:
    """The engines on each instance and what each reserves; ``None`` without copies."""
    if not candidate.has_copies:
        return Decision(None)
    copies, size = candidate.copies, candidate.gpus
    chosen, usd = reserved(candidate.instance, copies, size), candidate.usd_per_million_tokens
    if options.copies != "auto":
        return Decision(chosen)
    used = f"{copies * size} of the {candidate.instance.gpu_count} GPUs"
    because = f"with {size} GPU{'' if size == 1 else 's'} each they use {used}"
    because += "" if usd is None else f", at {token_cost_text(usd)}"
    return decide(chosen, "copies", because, copies)
