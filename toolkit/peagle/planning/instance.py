"""Why a plan has its instances, GPUs, copies and speculation: of the candidates that were compared,
what decided."""

from __future__ import annotations

from collections.abc import Iterator

from peagle.options import AUTO, Options
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate
from peagle.planning.operation import reserved
from peagle.planning.plan import Copies, Decision, Reason, reason
from peagle.planning.search import Selection
from peagle.planning.speculation import SpeedsByK


def selection_reasons(selection: Selection, compared: SpeedsByK) -> Iterator[Reason]:
    """Why this type, so many GPUs, and speculation or none."""
    candidate = selection.candidate
    if candidate.options.instance_type is None:
        yield _instance_reason(selection)
        if not selection.ranked:
            return
    yield _gpus_reason(candidate)
    if selection.unknown is not None or selection.search.pair.drafter is not None:
        yield _speculation_reason(selection, compared)


def _instance_reason(selection: Selection) -> Reason:
    """By cost per token or price, among those that are as good otherwise."""
    candidate, ranked, options = selection.candidate, selection.ranked, selection.candidate.options
    name, usd = candidate.instance.type, candidate.usd_per_million_tokens
    if not ranked:
        return reason("instance_type", name, "largest-instance")

    def apart_from_cost(peer: Candidate) -> tuple[bool, ...]:
        return peer.holds_load, peer.affordable, peer.meets, peer.excess is None

    peers = sum(apart_from_cost(other) == apart_from_cost(candidate) for other in ranked)
    speeds = [other.tokens_per_second for other in ranked if other.usd_per_hour is not None]
    costs = (other.usd_per_million_tokens for other in ranked)
    if candidate.excess is not None and not candidate.meets:
        code = "nearest-instance"
    elif peers == 1:
        code = "only-instance"
    elif usd is None or None in speeds:
        code = "cheapest-instance"  # by price per hour, since a speed is unknown
    elif all(cost is None or cost >= usd for cost in costs):
        code = "lowest-cost"
    else:
        code = "about-lowest-cost"
    return reason(
        "instance_type",
        name,
        code,
        types=peers,
        holds_load=candidate.holds_load,
        required=bool(options.min_tokens_per_second or options.slo or options.within),
        meets=candidate.meets,
        usd_per_million_tokens=usd,
        usd_per_hour=candidate.usd_per_hour,
        instances=candidate.count,
        tie_percent=round(SAME_COST_FACTOR * 100 - 100),
    )


def _gpus_reason(candidate: Candidate) -> Reason:
    count, basis = candidate.instance.gpu_count, candidate.performance.basis
    what, gpus = "tensor_parallel_size", candidate.gpus
    if count == 1:
        return reason(what, gpus, "one-gpu")
    if not candidate.fit.fits:
        return reason(what, gpus, "least-missing-memory")
    if basis != "unknown":
        return reason(what, gpus, "fastest-gpus", gpus=count, basis=basis)
    return reason(what, gpus, "fewest-gpus", gpus=count)


def _speculation_reason(selection: Selection, compared: SpeedsByK) -> Reason:
    """What speculation changes: the cost per output token, else the speed."""
    candidate, options = selection.candidate, selection.candidate.options
    drafter, what = candidate.drafter, "speculation"
    value = f"{drafter.name}, K={candidate.k}" if drafter else "none"
    if selection.unknown is not None and selection.unknown.drafter is not None:
        return reason(what, value, "drafter-unknown", drafter=selection.unknown.drafter.name)
    others = selection.alone if drafter else selection.speculating
    best = others[0] if others and others[0].holds_load else None
    usd = candidate.usd_per_million_tokens
    if best is not None and usd is not None and best.usd_per_million_tokens is not None:
        is_elsewhere = (best.count, best.instance) != (candidate.count, candidate.instance)
        code = "cost-with-drafter" if drafter else "cost-without-drafter"
        return reason(
            what,
            value,
            code,
            usd_per_million_tokens=usd,
            other_usd_per_million_tokens=best.usd_per_million_tokens,
            other_drafter=best.drafter.name if best.drafter else None,
            other_instance_count=best.count if is_elsewhere else None,
            other_instance_type=best.instance.type if is_elsewhere else None,
        )
    speeds = [
        (speed.tokens_per_second, name)
        for (name, _), speed in compared.items()
        if (name is None) is (drafter is not None) and speed.tokens_per_second is not None
    ]
    if candidate.tokens_per_second is not None and speeds:
        fastest, other = max(speeds, key=lambda speed: speed[0])
        code = "speed-with-drafter" if drafter else "speed-without-drafter"
        return reason(
            what,
            value,
            code,
            tokens_per_second=candidate.tokens_per_second,
            other_tokens_per_second=candidate.total(fastest) or 0.0,
            other_drafter=other,
        )
    if drafter is None and not selection.speculating:
        return reason(what, value, "drafter-too-large")
    is_named = options.drafter is not None or "+" in options.pair
    if options.chosen_by is not None:
        return reason(what, value, "verdict-drafter", verdict=options.chosen_by)
    return reason(what, value, "named-drafter" if is_named else "default-drafter")


def choose_count(options: Options, candidate: Candidate) -> Decision[int]:
    """The number of instances."""
    count, held = candidate.count, candidate.engine.most_requests * candidate.copies
    if options.instance_count is not None:
        return Decision(options.instance_count)
    what = "instance_count"
    if count == 1:
        because = reason(what, count, "one-serves")
    elif options.within is not None:
        because = reason(what, count, "done-in-time")
    elif count in (options.min_instances, options.max_instances):
        because = reason(what, count, "bound-of-scaling")
    elif held * (count - 1) < candidate.load * candidate.engines:
        because = reason(what, count, "cache-of-one", requests=held)
    else:
        because = reason(
            what,
            count,
            "fewer-too-slow",
            tokens_per_second=candidate.tokens_per_second,
            basis=candidate.performance.basis,
        )
    return Decision(count, (because,))


def choose_copies(options: Options, candidate: Candidate) -> Decision[Copies | None]:
    """The engines on each instance and what each reserves; ``None`` without copies."""
    if not candidate.has_copies:
        return Decision(None)
    copies, size = candidate.copies, candidate.gpus
    reservation = reserved(candidate.instance, copies, size)
    if options.copies != AUTO:
        return Decision(reservation)
    because = reason(
        "copies",
        copies,
        "copies-share-gpus",
        gpus_each=size,
        used=copies * size,
        gpus=candidate.instance.gpu_count,
        usd_per_million_tokens=candidate.usd_per_million_tokens,
    )
    return Decision(reservation, (because,))
