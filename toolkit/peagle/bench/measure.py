"""Measure the loads of one server: speed, latencies, acceptance, cost, saturation."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import sqrt
from pathlib import Path
from statistics import fmean, median

from peagle import __version__
from peagle.bench.aiperf import Aiperf, Sent, SentRequest, busiest_share, machine_share
from peagle.bench.models import (
    BenchedServer,
    BenchHost,
    BenchLoad,
    BenchResult,
    BenchRow,
    BenchSetting,
    CounterSource,
    Interval,
    MeasuredAcceptance,
    Progress,
    Repetition,
    Times,
    highest,
    mean_interval,
    silent,
    t_quantile,
    utc_now,
)
from peagle.bench.server import OpenAiServer, Probe, probe
from peagle.bench.workloads import find_workload, make_load, request_bodies
from peagle.errors import EngineError, PeagleError
from peagle.protocol import Counters, acceptance_length
from peagle.speed.models import AcceptanceBasis
from peagle.text import usd_per_million

LEAST_GAIN = 1.02
"""More requests must give so many times the tokens."""

_LEAST_REQUESTS = 8
_GROWTH = 0.5
"""The time to the first token grows by this share of its mean over the load."""


def queue_reason(
    load: BenchLoad, good: Sequence[SentRequest], waiting: Sequence[tuple[float, float]]
) -> str:
    """Why requests of this load wait in a queue; empty if they do not.

    By the engine's own gauge where it can be read, else by the times: most requests wait longer
    for their first token than for all others, or the wait grows in every repetition.
    """
    if load.concurrency == 1 or not good:
        return ""
    start, end = min(one.start for one in good), max(one.end for one in good)
    inside = [requests for at, requests in waiting if start <= at <= end]
    if len(inside) >= 2 and median(inside) > 0:
        return f"{median(inside):.0f} of {load.concurrency} requests wait in the engine's queue"
    timed = [(one.start, one.ttft, one.end - one.start) for one in good if one.ttft is not None]
    if len(timed) < _LEAST_REQUESTS:
        return ""
    first = median(ttft for _, ttft, _ in timed)
    rest = median(seconds - ttft for _, ttft, seconds in timed)
    if first > rest > 0:
        return f"requests wait {first:.2g} s for the first token, and {rest:.2g} s for the others"
    numbers = {one.repetition for one in good}
    if all(grows(_waits(good, number)) for number in numbers):
        return "the time to the first token grows during the load: the queue grows"
    return ""


def _waits(good: Sequence[SentRequest], repetition: int) -> list[tuple[float, float]]:
    return [
        (one.start, one.ttft)
        for one in good
        if one.repetition == repetition and one.ttft is not None
    ]


def grows(points: Sequence[tuple[float, float]]) -> bool:
    """Whether the second numbers grow with the first ones: significantly (one-sided t-test of the
    slope at 2.5 %), and by half of their mean from the first to the last."""
    count = len(points)
    if count < _LEAST_REQUESTS:
        return False
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return False
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = sqrt(rest / (count - 2) / spread)
    rise = slope * (max(x for x, _ in points) - min(x for x, _ in points))
    return slope > t_quantile(count - 2) * error and rise > _GROWTH * mean_y


def with_saturation(rows: Sequence[BenchRow]) -> tuple[BenchRow, ...]:
    """The rows; one is saturated whose tokens per second are hardly more than those of a smaller
    load of the same setting and workload."""
    flagged = {id(row): _no_gain(row, rows) for row in rows}
    return tuple(replace(row, saturated=row.saturated or flagged[id(row)]) for row in rows)


def _no_gain(row: BenchRow, rows: Sequence[BenchRow]) -> str:
    smaller = [
        other
        for other in rows
        if (other.setting, other.load.workload) == (row.setting, row.load.workload)
        and other.load.concurrency < row.load.concurrency
        and not other.incomplete
    ]
    if not smaller or row.incomplete:
        return ""
    best = max(smaller, key=lambda other: other.tokens_per_second.value)
    if row.tokens_per_second.value >= LEAST_GAIN * best.tokens_per_second.value:
        return ""
    requests = best.load.concurrency
    return f"no more tokens per second than with {requests} request{'s' * (requests != 1)}"


WAITING_SECONDS = 2.0
"""How often the engine's queue is read during a load."""

LoadProgress = Callable[[int, int], object]
"""Called with how many requests of how many have ended."""


@dataclass(frozen=True)
class BenchTarget:
    """A server to measure: where it is, what is known about it, and how to read its counters.

    ``read_counters`` returns ``None`` where they cannot be read, ``read_waiting`` where the queue
    is unknown. ``counted_by`` is where drafts are counted. ``usd_per_hour`` is of all instances,
    ``price_source`` where it comes from.
    """

    server: OpenAiServer
    facts: BenchedServer
    setting: BenchSetting
    read_counters: Callable[[], Counters | None] = lambda: None
    read_waiting: Callable[[], float | None] = lambda: None
    usd_per_hour: float | None = None
    price_source: str | None = None
    counted_by: CounterSource = "counters"

    @property
    def runs_alone(self) -> bool:
        """Whether this is known to be a target without speculation."""
        return self.facts.pair is not None and not self.setting.k


def measure_of(
    target: BenchTarget, sender: Aiperf
) -> Callable[[BenchLoad, LoadProgress], BenchRow]:
    """The function that measures loads of ``target``, which is probed once. Raises what ``probe``
    raises."""
    probed = probe(target.server)
    return lambda load, progress: measure_load(target, load, probed, sender, progress)


def measure_load(
    target: BenchTarget,
    load: BenchLoad,
    probed: Probe,
    sender: Aiperf,
    progress: LoadProgress = lambda ended, total: None,
) -> BenchRow:
    """Send the load, which begins with a warm-up that is not counted, and evaluate it.

    A load whose requests fail has what was measured before, and ``incomplete`` says why. Raises
    UserError for requests above the
    server's context, EngineError when no request succeeds, and what ``sender`` raises.
    """
    probed.require_room(load.workload)
    load = replace(
        load,
        workload=replace(
            load.workload, fixed_length=load.workload.fixed_length and probed.fixed_length
        ),
    )
    phases = request_bodies(
        load, model=target.server.model, chat=target.server.chat, tokens=probed.tokens
    )
    total = sum(map(len, phases))
    queue = _Queue(target.read_waiting)
    before = _or_none(target.read_counters)

    def each(ended: int) -> None:
        queue.read()
        progress(ended, total)

    sent = sender.send(target.server, phases, load.concurrency, each)
    counted = _since(before, _or_none(target.read_counters))
    return evaluate(target, load, sent, counted, queue.readings)


def evaluate(
    target: BenchTarget,
    load: BenchLoad,
    sent: Sent,
    counted: Counters | None,
    waiting: Sequence[tuple[float, float]] = (),
) -> BenchRow:
    """The row of a load that was sent. Raises EngineError when no request succeeded.

    ``waiting`` are times and the number of requests in the engine's queue.
    """
    by_number = [
        [one for one in sent.requests if one.repetition == number]
        for number in range(1, load.repetitions + 1)
    ]
    measured = [_repetition(some, sent) for some in by_number if any(not r.error for r in some)]
    failed = [request for request in sent.requests if request.error]
    if not measured:
        why = sent.error or most_common(one.error for one in failed) or "nothing was sent"
        raise EngineError(
            f"no request of the load succeeded: {why}", target.server.fix, "load-failed"
        )
    complete = [one for one in measured if not one.errors and one.requests == load.requests]
    used = complete or measured
    numbers = {number for number, some in enumerate(by_number, 1) if any(not r.error for r in some)}
    good = [one for one in sent.requests if not one.error and one.repetition in numbers]
    speed = mean_interval([one.tokens_per_second for one in used])
    return BenchRow(
        setting=_setting(target.setting, counted),
        load=load,
        repetitions=tuple(measured),
        tokens_per_second=Interval(speed.value, max(speed.low, 0.0), speed.high),
        ttft=times_of([one.ttft for one in good if one.ttft is not None]),
        itl=_times_or_none([gap for one in good for gap in one.gaps]),
        tpot=_times_or_none([time for one in good if (time := _tpot(one)) is not None]),
        prompt_tokens=statistics.fmean(one.prompt_tokens or 0 for one in good),
        output_tokens=statistics.fmean(one.output_tokens or 0 for one in good),
        acceptance=_acceptance(counted, target.setting),
        usd_per_million_tokens=usd_per_million(target.usd_per_hour, speed.value),
        saturated=queue_reason(load, good, waiting),
        incomplete=_incomplete(load, sent, failed, len(complete)),
        sender_cpu_share=highest(one.sender_cpu_share for one in measured),
        machine_cpu_share=highest(one.machine_cpu_share for one in measured),
    )


def times_of(values: Sequence[float]) -> Times:
    """Mean and percentiles. Raises ValueError without a value."""
    several = values if len(values) > 1 else [*values, *values]
    cuts = statistics.quantiles(several, n=100, method="inclusive")
    return Times(statistics.fmean(values), cuts[49], cuts[89], cuts[98], len(values))


def most_common(messages: Iterable[str]) -> str:
    """The most frequent message; empty without any."""
    counted = Counter(messages).most_common(1)
    return counted[0][0] if counted else ""


def _times_or_none(values: Sequence[float]) -> Times | None:
    return times_of(values) if values else None


def _tpot(request: SentRequest) -> float | None:
    """Seconds per token after the first; the first output counts as one token."""
    if not request.gaps or not request.output_tokens or request.output_tokens < 2:
        return None
    return sum(request.gaps) / (request.output_tokens - 1)


def _repetition(requests: Sequence[SentRequest], sent: Sent) -> Repetition:
    good = [one for one in requests if not one.error]
    start, end = min(one.start for one in requests), max(one.end for one in good)
    return Repetition(
        seconds=max(end - start, 1e-9),
        requests=len(requests),
        output_tokens=sum(one.output_tokens or 0 for one in good),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in good),
        ttft=times_of([one.ttft for one in good if one.ttft is not None]),
        itl=_times_or_none([gap for one in good for gap in one.gaps]),
        tpot=_times_or_none([time for one in good if (time := _tpot(one)) is not None]),
        request_seconds=times_of([one.end - one.start for one in good]),
        errors=tuple(one.error for one in requests if one.error),
        sender_cpu_share=busiest_share(sent, start, end),
        machine_cpu_share=machine_share(sent, start, end),
    )


def _incomplete(load: BenchLoad, sent: Sent, failed: Sequence[SentRequest], complete: int) -> str:
    if complete == load.repetitions and not failed:
        return ""
    why = most_common(one.error for one in failed) or sent.error
    what = f"{len(failed)} requests failed" if failed else "requests are missing"
    return f"{complete} of {load.repetitions} repetitions are complete; {what}: {why}"


def _or_none(read: Callable[[], Counters | None]) -> Counters | None:
    """The counters; ``None`` from a server that has died, or whose log may not be read."""
    try:
        return read()
    except PeagleError:
        return None


def _since(before: Counters | None, after: Counters | None) -> Counters | None:
    return after.since(before) if before is not None and after is not None else None


def _setting(known: BenchSetting, counted: Counters | None) -> BenchSetting:
    """The setting; of a server about which nothing is known, K by its counters."""
    if known.is_known or counted is None:
        return known
    return replace(
        known, k=len(counted.accepted_per_position) if counted.drafts else 0, is_known=True
    )


def _acceptance(counted: Counters | None, setting: BenchSetting) -> MeasuredAcceptance | None:
    """The acceptance, from the warm-up on; ``None`` where nothing was drafted or counted."""
    length = acceptance_length(counted) if counted else None
    if counted is None or length is None:
        return None
    rates = tuple(accepted / counted.drafts for accepted in counted.accepted_per_position)
    basis: AcceptanceBasis = "imposed" if setting.imposed_rates else "measured"
    return MeasuredAcceptance(length, rates, counted.drafts, basis)


class _Queue:
    """Reads the number of waiting requests now and then."""

    def __init__(self, read_waiting: Callable[[], float | None]) -> None:
        self._read, self._next = read_waiting, 0.0
        self.readings: list[tuple[float, float]] = []

    def read(self) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + WAITING_SECONDS
        if (waiting := self._read()) is None:
            self._next = float("inf")
        else:
            self.readings.append((time.time(), waiting))


INTERRUPTED = "interrupted"
"""``BenchResult.incomplete`` after Ctrl-C."""


def bench(
    target: BenchTarget,
    loads: Sequence[BenchLoad],
    sender: Aiperf,
    command: Sequence[str] = (),
    progress: Progress = silent,
) -> BenchResult:
    """Measure the loads one after another.

    An error or an interrupt after the first row ends the measurement and keeps the rows, with
    ``incomplete``. Raises what ``probe`` and ``measure_load`` raise before there is one.
    """
    started = utc_now()
    measure = measure_of(target, sender)
    rows: list[BenchRow] = []
    ended = ""
    for load in loads:
        try:
            rows.append(measure(load, partial(progress, load.text)))
        except (PeagleError, KeyboardInterrupt) as error:
            if not rows:
                raise
            ended = error.message if isinstance(error, PeagleError) else INTERRUPTED
        if ended := ended or rows[-1].incomplete:
            break
    return BenchResult(
        server=target.facts,
        started=started,
        toolkit=__version__,
        sender=sender.identity,
        host=this_host(),
        command=tuple(command),
        rows=with_saturation(rows),
        usd_per_hour=target.usd_per_hour,
        price_source=target.price_source,
        incomplete=ended,
    )


def this_host() -> BenchHost:
    """This machine, from where the load comes."""
    return BenchHost(platform.platform(), platform.python_version(), os.cpu_count() or 0, _cpu())


def _cpu() -> str:
    """The model of the CPU; of a system without ``/proc``, its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    model = next((line for line in lines if line.startswith("model name")), "")
    return model.partition(":")[2].strip() or platform.machine()


def bench_loads(
    workload: str,
    concurrencies: Sequence[int],
    repetitions: int = 3,
    requests: int | None = None,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
) -> tuple[BenchLoad, ...]:
    """The loads of a workload, by its name or its file, at these concurrencies. Raises UserError
    as ``find_workload`` does."""
    found = find_workload(workload, prompt_tokens, output_tokens)
    return tuple(
        make_load(found, concurrency, repetitions, requests) for concurrency in concurrencies
    )


def with_price(target: BenchTarget, usd_per_hour: float) -> BenchTarget:
    """The target at the user's own price."""
    return replace(target, usd_per_hour=usd_per_hour, price_source="as given")
