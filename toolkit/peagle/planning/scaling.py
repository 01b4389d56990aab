"""Decides how a plan scales: the bounds of the options, and a target from the performance model.

The target is the most requests at a time with which one instance, or one copy of the engine, is
predicted to meet the objective, and with which none waits for another: more run neither sooner nor
cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from peagle.case import MOST_COUNT
from peagle.catalog.tables import RuntimeTable
from peagle.errors import Fix, OptionMissing, OptionsConflict, OutOfRange, UserError
from peagle.findings import Finding, error, warning
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.copies import Copies
from peagle.planning.engines import Load
from peagle.planning.operation_model import Scaling
from peagle.planning.plan import Decision, Reason
from peagle.speed.estimate import slots
from peagle.speed.models import Performance
from peagle.text import counted, format_duration, format_requests, format_usd

SHORTEST_SCALE_IN_SECONDS = 300
"""Application Auto Scaling's own cooldown for instances of an endpoint."""

SCALE_OUT_SECONDS = 60
"""SageMaker accepts no further change while an instance starts, so a longer pause adds nothing."""


def check_scaling(options: Options) -> None:
    """Raise UserError for bounds that contradict each other or the other options."""
    low, high, count = options.min_instances, options.max_instances, options.instance_count
    target = options.target_concurrency
    if options.scale_to_zero and low is not None:
        raise OptionsConflict(
            "--min-instances and --scale-to-zero exclude each other", "omit one of them"
        )
    if high is None and not options.scale_to_zero:
        for flag, value in (("--min-instances", low), ("target_concurrency", target)):
            if value is not None:
                raise OptionMissing(f"{flag} needs --max-instances", "add --max-instances N")
        return
    if high is not None and not (options.scale_to_zero and high == 1 == (count or 1)):
        _check_bounds(1 if low is None else low, high, count)
    if target is not None and not 0 < target < math.inf:
        raise OutOfRange(f"target_concurrency {target:g} is not a positive number", "use 1")


def _check_bounds(low: int, high: int, count: int | None) -> None:
    if low < 1:
        message = f"--min-instances {low} is less than 1: a variant with a model keeps one instance"
        raise OutOfRange(message, "use 1, or --scale-to-zero")
    if high > MOST_COUNT:
        raise OutOfRange(f"--max-instances is more than {MOST_COUNT:,}", "use a smaller number")
    if high <= low:
        raise UserError(
            f"--max-instances {high} is not more than --min-instances {low}",
            "use a larger maximum, or --instance-count for a fixed number",
            code="invalid-scaling",
        )
    if count is not None and not low <= count <= high:
        raise UserError(
            f"--instance-count {count} is outside of {low} to {high} instances",
            "omit it, or change --min-instances and --max-instances",
            code="invalid-scaling",
        )


def choose_scaling(
    options: Options,
    load: Load,
    candidate: Candidate,
    start_seconds: int | None,
    copies: Copies | None,
) -> Decision[Scaling | None]:
    """The scaling of the planned instances, or of the ``copies`` on them; ``None`` without
    ``--max-instances`` and ``--scale-to-zero``.

    ``start_seconds`` is about how long a new instance takes until it serves, which is how long the
    first request waits after a scale to zero; ``None`` without scaling.
    """
    if start_seconds is None:
        return Decision(None)
    target = options.target_concurrency
    most, because = _most_requests(load, candidate)
    least = 0 if options.scale_to_zero else options.min_instances or 1
    highest = options.max_instances or candidate.count
    cooldown = max(SHORTEST_SCALE_IN_SECONDS, start_seconds)
    scaling = Scaling(
        min_instances=least,
        max_instances=highest,
        target_concurrency=most if target is None else target,
        scale_in_cooldown_seconds=cooldown,
        scale_out_cooldown_seconds=SCALE_OUT_SECONDS,
        min_copies=least * copies.per_instance if copies else None,
        max_copies=highest * copies.per_instance if copies else None,
        wake_up_seconds=start_seconds if options.scale_to_zero else None,
    )
    unit, findings = counted(1, scaling.scales_copies), [*_price_findings(candidate, scaling)]
    again = f"starting {'a copy' if scaling.scales_copies else 'an instance'} again takes about"
    why = f"{again} this long (start_time)"
    if cooldown == SHORTEST_SCALE_IN_SECONDS:
        why = "AWS's own; a start takes less"
    shown = format_duration(cooldown)
    reasons = [Reason(what="scale_in_cooldown", value=shown, because=why)]
    if target is None:
        value = f"{most} per {unit}"
        reasons.insert(0, Reason(what="target_concurrency", value=value, because=because))
    elif target > most:
        message = f"target_concurrency {target:g} is more than one {unit} should get: {because}"
        fix = Fix(f"use target_concurrency: {most}, or omit it")
        findings.append(warning("scaling-target-high", "target_concurrency", message, fix))
    return Decision(scaling, tuple(reasons), tuple(findings))


_ZERO_REFUSED_CODE = "scale-to-zero-refused"
"""SageMaker is reported to refuse scale to zero in the region.

Fix: use another region, or --max-instances without --scale-to-zero
"""


def zero_findings(options: Options, table: RuntimeTable, region: str) -> Iterator[Finding]:
    """A warning where a scale to zero is reported to be refused."""
    reported = table.scale_to_zero_refused.get(region)
    if options.scale_to_zero and reported:
        message = f"SageMaker is reported to refuse scale to zero in {region} ({reported})"
        fix = "use another --region, or --max-instances without --scale-to-zero"
        yield warning(_ZERO_REFUSED_CODE, "scale_to_zero", message, fix)


def _price_findings(candidate: Candidate, scaling: Scaling) -> Iterator[Finding]:
    """An error if the maximum costs more than the limit."""
    limit, most = candidate.asked.max_price_per_hour, scaling.max_instances
    prices = scaling.prices(candidate.usd_per_hour, candidate.count)
    if limit is None or prices is None or prices[1] <= limit:
        return
    message = f"{most} instances cost {format_usd(prices[1])} an hour; the limit is "
    message += format_usd(limit)
    allowed, fix = math.floor(limit * most / prices[1]), Fix("raise the limit")
    if allowed > max(1, scaling.min_instances):
        fix = Fix(f"use --max-instances {allowed}", options=("--max-instances", f"{allowed}"))
    yield error("scaling-above-price-limit", "max_instances", message, fix)


def _most_requests(load: Load, candidate: Candidate) -> tuple[int, str]:
    """The most requests at a time with which one engine meets the objective and none queues, and
    why."""
    engine, slo = candidate.engine, candidate.asked.slo

    def speed(requests: int) -> Performance:
        return load.performance(engine, candidate.drafter, candidate.k, requests)

    def excess(requests: int) -> float | None:
        times = speed(requests)
        return slo.excess(times.ttft_seconds, times.itl_seconds) if slo else None

    def described(requests: int) -> str:
        """``ttft 0.482 s, itl 0.0124 s, estimated``."""
        times, parts = speed(requests), []
        if times.ttft_seconds is not None:
            parts.append(f"ttft {times.ttft_seconds:.3g} s")
        if times.itl_seconds is not None:
            parts.append(f"itl {times.itl_seconds:.3g} s")
        return ", ".join([*parts, times.basis])

    running = slots(engine.case, engine.fit, load.workload) if engine.fit.fits else 0.0
    limit = max(1, math.floor(running))
    why = f"one runs {format_requests(limit)} at once (--concurrency), more would queue"
    if limit < engine.case.engine.max_num_seqs:
        why = f"the KV cache of one holds {format_requests(limit)} of this size, more would queue"
    if slo is None:
        return limit, f"{why}; --slo plans for response times instead"
    at_most = excess(limit)
    if at_most is None:
        return limit, f"{why}; whether {slo.text} holds is unknown"
    if at_most <= 1:
        return limit, f"{slo.text} holds with {format_requests(limit)} ({described(limit)}); {why}"
    low, high = 0, limit  # the objective holds with low, and breaks with high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if (excess(middle) or 0) > 1 else (middle, high)
    broken = f"{slo.text} breaks with {format_requests(high)} ({described(high)})"
    if low == 0:
        return 1, f"{broken}: more instances do not help"
    return low, f"{broken}; with {low} it holds ({described(low)})"
