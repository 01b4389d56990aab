"""Measure one load of one server: send it, and compute speed, latencies, acceptance and cost."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from peagle.bench.intervals import mean_interval
from peagle.bench.models import (
    BenchedServer,
    BenchLoad,
    BenchRow,
    BenchSetting,
    CounterSource,
    Interval,
    MeasuredAcceptance,
    Repetition,
    Times,
    highest,
)
from peagle.bench.openai_server import OpenAiServer
from peagle.bench.probe import Probe, probe
from peagle.bench.saturation import queue_reason
from peagle.bench.sender import LoadSender, Sent, SentRequest, busiest_share, machine_share
from peagle.bench.workloads import request_bodies
from peagle.errors import EngineError, PeagleError
from peagle.protocol import Counters, acceptance_length
from peagle.speed.models import AcceptanceBasis
from peagle.text import usd_per_million

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
    target: BenchTarget, sender: LoadSender
) -> Callable[[BenchLoad, LoadProgress], BenchRow]:
    """The function that measures loads of ``target``, which is probed once. Raises what ``probe``
    raises."""
    probed = probe(target.server)
    return lambda load, progress: measure_load(target, load, probed, sender, progress)


def measure_load(
    target: BenchTarget,
    load: BenchLoad,
    probed: Probe,
    sender: LoadSender,
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
