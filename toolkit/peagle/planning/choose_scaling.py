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
from peagle.planning.candidates import Candidate, PairLoad
from peagle.planning.copies import Copies
from peagle.planning.operation_model import Scaling
from peagle.planning.options import Options
from peagle.planning.pair_speed import pair_performance
from peagle.planning.plan import Decision, Reason
from peagle.speed.estimate import slots
from peagle.speed.models import Performance
from peagle.speed.slo import Slo
from peagle.text import counted, format_duration, format_requests, format_usd

SHORTEST_SCALE_IN_SECONDS = 300
"""Application Auto Scaling's own cooldown for instances of an endpoint."""

SCALE_OUT_SECONDS = 60
"""SageMaker accepts no further change while an instance starts, so a longer pause adds nothing."""


def scales(options: Options) -> bool:
    """Whether the plan scales automatically."""
    return options.max_instances is not None or options.scale_to_zero


def check_scaling(options: Options) -> None:
    """Raise UserError for bounds that contradict each other or the other options."""
    low, high, count = options.min_instances, options.max_instances, options.instance_count
    if options.scale_to_zero:
        if options.min_instances is not None:
            raise OptionsConflict(
                "--min-instances and --scale-to-zero exclude each other", "omit one of them"
            )
        _check_target(options.target_concurrency)
        if high is None or high == 1 == (count or 1):
            return
        low = 1
    if high is None:
        flags = {"--min-instances": low, "target_concurrency": options.target_concurrency}
        for flag, value in flags.items():
            if value is not None:
                raise OptionMissing(f"{flag} needs --max-instances", "add --max-instances N")
        return
    low = 1 if low is None else low
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
    _check_target(options.target_concurrency)


def _check_target(target: float | None) -> None:
    if target is not None and not 0 < target < math.inf:
        raise OutOfRange(f"target_concurrency {target:g} is not a positive number", "use 1")


def choose_scaling(
    options: Options,
    work: PairLoad,
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
    load = _LoadOfOne(options.slo, work, candidate)
    target = options.target_concurrency
    most, because = load.most()
    least = 0 if options.scale_to_zero else options.min_instances or 1
    highest = options.max_instances or candidate.count
    scaling = Scaling(
        min_instances=least,
        max_instances=highest,
        target_concurrency=most if target is None else target,
        scale_in_cooldown_seconds=max(SHORTEST_SCALE_IN_SECONDS, start_seconds),
        scale_out_cooldown_seconds=SCALE_OUT_SECONDS,
        min_copies=least * copies.per_instance if copies else None,
        max_copies=highest * copies.per_instance if copies else None,
        wake_up_seconds=start_seconds if options.scale_to_zero else None,
    )
    unit = counted(1, scaling.scales_copies)
    reasons = [_cooldown_reason(scaling)]
    findings = [*_price_findings(options, candidate, scaling)]
    if target is None:
        value = f"{most} per {unit}"
        reasons.insert(0, Reason(what="target_concurrency", value=value, because=because))
    elif target > most:
        message = f"target_concurrency {target:g} is more than one {unit} should get: {because}"
        fix = Fix(
            f"use target_concurrency: {most}, or omit it",
        )
        findings.append(warning("scaling-target-high", "target_concurrency", message, fix))
    return Decision(scaling, tuple(reasons), tuple(findings))


def _cooldown_reason(scaling: Scaling) -> Reason:
    seconds = scaling.scale_in_cooldown_seconds
    unit = "a copy" if scaling.scales_copies else "an instance"
    because = f"starting {unit} again takes about this long (start_time)"
    if seconds == SHORTEST_SCALE_IN_SECONDS:
        because = "AWS's own; a start takes less"
    return Reason(what="scale_in_cooldown", value=format_duration(seconds), because=because)


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


def _price_findings(options: Options, candidate: Candidate, scaling: Scaling) -> list[Finding]:
    """An error if the maximum costs more than the limit."""
    limit = options.max_price_per_hour
    prices = scaling.prices(candidate.usd_per_hour, candidate.count)
    if limit is None or prices is None or prices[1] <= limit:
        return []
    allowed = math.floor(limit * scaling.max_instances / prices[1])
    message = f"{scaling.max_instances} instances cost {format_usd(prices[1])} an hour; the limit "
    message += f"is {format_usd(limit)}"
    enough = allowed > max(1, scaling.min_instances)
    fix = Fix("raise the limit")
    if enough:
        fix = Fix(f"use --max-instances {allowed}", options=("--max-instances", f"{allowed}"))
    return [error("scaling-above-price-limit", "max_instances", message, fix)]


class _LoadOfOne:
    """How many requests at a time one instance should get."""

    def __init__(self, slo: Slo | None, work: PairLoad, candidate: Candidate) -> None:
        self._slo, self._work, self._on = slo, work, candidate.on_instance

    def most(self) -> tuple[int, str]:
        """The most requests with which the objective is met and none queues, and why."""
        limit, why = self._at_once()
        if self._slo is None:
            return limit, f"{why}, more would queue; --slo plans for response times instead"
        if self._excess(limit) is None:
            return limit, f"{why}, more would queue; whether {self._slo.text} holds is unknown"
        if not self._breaks(limit):
            held = f"{self._slo.text} holds with {format_requests(limit)} ({self._times(limit)})"
            return limit, f"{held}; {why}, more would queue"
        low, high = 0, limit  # the objective holds with low, and breaks with high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._breaks(middle) else (middle, high)
        broken = f"{self._slo.text} breaks with {format_requests(high)} ({self._times(high)})"
        if low == 0:
            return 1, f"{broken}: more instances do not help"
        return low, f"{broken}; with {low} it holds ({self._times(low)})"

    def _at_once(self) -> tuple[int, str]:
        """The requests that run at the same time, and what limits them."""
        case, fit = self._on.case, self._on.fit
        running = slots(case, fit, self._work.workload) if fit.fits else 0.0
        limit = max(1, math.floor(running))
        if limit < case.engine.max_num_seqs:
            return limit, f"the KV cache of one holds {format_requests(limit)} of this size"
        return limit, f"one runs {format_requests(limit)} at once (--concurrency)"

    def _performance(self, load: int) -> Performance:
        return pair_performance(self._work, self._on.case, load, fit=self._on.fit)

    def _excess(self, load: int) -> float | None:
        times = self._performance(load)
        return self._slo.excess(times.ttft_seconds, times.itl_seconds) if self._slo else None

    def _breaks(self, load: int) -> bool:
        excess = self._excess(load)
        return excess is not None and excess > 1

    def _times(self, load: int) -> str:
        """``ttft 0.482 s, itl 0.0124 s, estimated``."""
        times = self._performance(load)
        parts = []
        if times.ttft_seconds is not None:
            parts.append(f"ttft {times.ttft_seconds:.3g} s")
        if times.itl_seconds is not None:
            parts.append(f"itl {times.itl_seconds:.3g} s")
        return ", ".join([*parts, times.basis])
