"""How many engines run, and when: copies on an instance, and automatic scaling.

SageMaker runs copies as one inference component: every copy is a container with its own GPUs, and
requests go to the copy with the fewest. ``n`` copies are ``n`` engines that share the load evenly.

The target of scaling is the most requests at a time with which one instance, or one copy, is
predicted to meet the objective, and with which none waits for another: more run neither sooner nor
cheaper.
"""

from __future__ import annotations

import math

from peagle.catalog.tables import Instance
from peagle.errors import Fix
from peagle.findings import Finding, error, warning
from peagle.options import AUTO, Options
from peagle.planning.candidates import Candidate
from peagle.planning.engines import Load
from peagle.planning.plan import Copies, Decision, Reason, Scaling
from peagle.speed.estimate import slots
from peagle.text import counted, format_duration, format_requests, format_usd

RESERVED_SHARE = 0.75
"""The share of an instance's CPUs and host memory that its copies reserve together. SageMaker's own
processes need some, and AWS does not say how much; a reservation that is too large is never
placed. Copies may use more than they reserve."""

SHORTEST_SCALE_IN_SECONDS = 300
"""Application Auto Scaling's own cooldown for instances of an endpoint."""

SCALE_OUT_SECONDS = 60
"""SageMaker accepts no further change while an instance starts, so a longer pause adds nothing."""

_ZERO_REFUSED_CODE = "scale-to-zero-refused"
"""SageMaker is reported to refuse scale to zero in the region.

Fix: use another region, or --max-instances without --scale-to-zero
"""


def reserved(instance: Instance, copies: int, gpus: int) -> Copies:
    """``copies`` with ``gpus`` GPUs each, and equal shares of the instance's CPUs and memory."""
    return Copies(
        per_instance=copies,
        gpus=gpus,
        cpu_cores=max(1, math.floor(instance.vcpus * RESERVED_SHARE / copies)),
        memory_mib=math.floor(instance.memory_gib * 1024 * RESERVED_SHARE / copies),
    )


def with_copies(options: Options) -> Options:
    """The options for planning, where ``copies`` is ``None`` for one engine without an inference
    component: for ``--copies 1``, and by default with an option that SageMaker has for instances
    with a model only. Otherwise the default is ``auto``. Instances that scale to zero always have a
    component: SageMaker keeps one of a variant that has a model."""
    if options.scale_to_zero:
        return options.model_copy(update={"copies": options.copies or AUTO})
    if options.copies == 1:
        return options.model_copy(update={"copies": None})
    excluded = options.capture_data is not None or options.rollout not in (None, "rolling")
    if options.copies is None and not excluded:
        return options.model_copy(update={"copies": AUTO})
    return options


def choose_scaling(
    options: Options,
    load: Load,
    candidate: Candidate,
    start_seconds: int | None,
    copies: Copies | None,
    region: str,
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
    unit, findings = counted(1, scaling.scales_copies), list[Finding]()
    prices = scaling.prices(candidate.usd_per_hour, candidate.count)
    limit = options.max_price_per_hour
    if limit is not None and prices is not None and prices[1] > limit:
        usd = f"{format_usd(prices[1])} an hour; the limit is {format_usd(limit)}"
        allowed, fix = math.floor(limit * highest / prices[1]), Fix("raise the limit")
        if allowed > max(1, least):
            fix = Fix(f"use --max-instances {allowed}", options=("--max-instances", f"{allowed}"))
        message = f"{highest} instances cost {usd}"
        findings.append(error("scaling-above-price-limit", "max_instances", message, fix))
    why = "AWS's own; a start takes less"
    if cooldown > SHORTEST_SCALE_IN_SECONDS:
        started = "a copy" if scaling.scales_copies else "an instance"
        why = f"starting {started} again takes about this long (start_time)"
    reasons = [Reason(what="scale_in_cooldown", value=format_duration(cooldown), because=why)]
    if target is None:
        value = f"{most} per {unit}"
        reasons.insert(0, Reason(what="target_concurrency", value=value, because=because))
    elif target > most:
        message = f"target_concurrency {target:g} is more than one {unit} should get: {because}"
        fix = Fix(f"use target_concurrency: {most}, or omit it")
        findings.append(warning("scaling-target-high", "target_concurrency", message, fix))
    reported = load.catalog.runtimes.scale_to_zero_refused.get(region)
    if options.scale_to_zero and reported:
        message = f"SageMaker is reported to refuse scale to zero in {region} ({reported})"
        fix = Fix("use another --region, or --max-instances without --scale-to-zero")
        findings.append(warning(_ZERO_REFUSED_CODE, "scale_to_zero", message, fix))
    return Decision(scaling, tuple(reasons), tuple(findings))


def _most_requests(load: Load, candidate: Candidate) -> tuple[int, str]:
    """The most requests at a time with which one engine meets the objective and none queues, and
    why."""
    engine, slo = candidate.engine, candidate.asked.slo
    running = slots(engine.case, engine.fit, load.workload) if engine.fit.fits else 0.0
    limit = max(1, math.floor(running))
    why = f"one runs {format_requests(limit)} at once (--concurrency), more would queue"
    if limit < engine.case.engine.max_num_seqs:
        why = f"the KV cache of one holds {format_requests(limit)} of this size, more would queue"
    if slo is None:
        return limit, f"{why}; --slo plans for response times instead"

    def times(requests: int) -> tuple[float | None, str]:
        """The ratio to the objective, and ``ttft 0.482 s, itl 0.0124 s, estimated``."""
        speed = load.performance(engine, candidate.drafter, candidate.k, requests)
        parts = {"ttft": speed.ttft_seconds, "itl": speed.itl_seconds}
        texts = [f"{name} {time:.3g} s" for name, time in parts.items() if time is not None]
        return slo.excess(*parts.values()), ", ".join([*texts, speed.basis])

    at_most, text = times(limit)
    if at_most is None:
        return limit, f"{why}; whether {slo.text} holds is unknown"
    if at_most <= 1:
        return limit, f"{slo.text} holds with {format_requests(limit)} ({text}); {why}"
    low, high = 0, limit  # the objective holds with low, and breaks with high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if (times(middle)[0] or 0) > 1 else (middle, high)
    broken = f"{slo.text} breaks with {format_requests(high)} ({times(high)[1]})"
    if low == 0:
        return 1, f"{broken}: more instances do not help"
    return low, f"{broken}; with {low} it holds ({times(low)[1]})"
