"""Measure the loads of one server: speed, latencies, acceptance, cost, saturation."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median

from peagle import __version__
from peagle.bench.aiperf import Aiperf, Sent, SentRequest
from peagle.bench.result import (
    BenchedServer,
    BenchHost,
    BenchLoad,
    BenchResult,
    BenchRow,
    Interval,
    Progress,
    Repetition,
    Times,
    acceptance_in,
    highest,
    incomplete_reason,
    ratio_interval,
    silent,
    utc_now,
)
from peagle.bench.targets import BenchTarget, Probe, probe
from peagle.bench.workloads import request_bodies
from peagle.errors import EngineError, PeagleError
from peagle.protocol import Counters
from peagle.text import format_requests, usd_per_million

LoadProgress = Callable[[int, int], object]
"""Called with how many requests of how many have ended."""

Measure = Callable[[BenchLoad, LoadProgress], BenchRow]
"""Measures one load of the server that serves."""


def bench(
    target: BenchTarget,
    loads: Sequence[BenchLoad],
    sender: Aiperf,
    command: Sequence[str] = (),
    progress: Progress = silent,
) -> BenchResult:
    """Measure the loads one after another. An error or an interrupt after the first row ends it and
    keeps the rows, with ``incomplete``; before, it is raised."""
    result = new_result(target.facts, sender, command)
    measure = measure_of(target, sender)
    rows: list[BenchRow] = []
    ended = ""
    for load in loads:
        try:
            rows.append(measure(load, partial(progress, load.text)))
            ended = rows[-1].incomplete
        except (PeagleError, KeyboardInterrupt) as error:
            if not rows:
                raise
            ended = incomplete_reason(error)
        if ended:
            break
    return replace(
        result,
        usd_per_hour=target.usd_per_hour,
        price_source=target.price_source,
        rows=with_saturation(rows),
        incomplete=ended,
    )


def new_result(server: BenchedServer, sender: Aiperf, command: Sequence[str]) -> BenchResult:
    """A result without rows, of a load from this machine that begins now."""
    cpu = platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line for line in lines if line.startswith("model name")), "")
        cpu = model.partition(":")[2].strip() or cpu
    return BenchResult(
        server=server,
        started=utc_now(),
        toolkit=__version__,
        sender=("aiperf", sender.version),
        host=BenchHost(platform.platform(), platform.python_version(), os.cpu_count() or 0, cpu),
        command=tuple(command),
        rows=(),
    )


def measure_of(target: BenchTarget, sender: Aiperf) -> Measure:
    """The function that measures loads of ``target``, which is probed once. Raises what ``probe``
    raises."""
    probed = probe(target.server)
    return lambda load, progress: measure_load(target, load, probed, sender, progress)


def measure_load(
    target: BenchTarget, load: BenchLoad, probed: Probe, sender: Aiperf, progress: LoadProgress
) -> BenchRow:
    """Send the load, which begins with a warm-up that is not counted, and evaluate it. Raises
    UserError for requests above the server's context, and EngineError when no request succeeds."""
    probed.require_room(load.workload)
    fixed_length = load.workload.fixed_length and probed.fixed_length
    load = replace(load, workload=replace(load.workload, fixed_length=fixed_length))
    words = probed.words(load.workload.size.prompt_tokens)
    phases = request_bodies(load, model=target.server.model, chat=target.server.chat, words=words)
    total = sum(map(len, phases))
    waiting: list[tuple[float, float]] = []
    next_reading = 0.0

    def observe(ended: int) -> None:
        nonlocal next_reading
        if time.monotonic() >= next_reading:
            next_reading = time.monotonic() + 2.0
            if (requests := target.read_waiting()) is None:
                next_reading = float("inf")
            else:
                waiting.append((time.time(), requests))
        progress(ended, total)

    def read_counters() -> Counters | None:
        with suppress(PeagleError):  # the server has died, or its log may not be read
            return target.read_counters()
        return None

    before = read_counters()
    sent = sender.send(target.server, phases, load.concurrency, observe)
    after = read_counters()
    counted = after.since(before) if before is not None and after is not None else None
    return evaluate(target, load, sent, counted, waiting)


def evaluate(
    target: BenchTarget,
    load: BenchLoad,
    sent: Sent,
    counted: Counters | None,
    waiting: Sequence[tuple[float, float]] = (),
) -> BenchRow:
    """The row of a load that was sent, without its prompts; where requests failed, of those before.
    ``waiting`` are times and the number of requests in the engine's queue. Raises EngineError when
    no request succeeded."""
    groups = [
        [request for request in sent.requests if request.repetition == number]
        for number in range(1, load.repetitions + 1)
    ]
    groups = [group for group in groups if any(not request.error for request in group)]
    failed = Counter(request.error for request in sent.requests if request.error)
    why = failed.most_common(1)[0][0] if failed else sent.error
    if not groups:
        raise EngineError(
            f"no request of the load succeeded: {sent.error or why or 'nothing was sent'}",
            target.server.fix,
            "load-failed",
        )
    repetitions = [_repetition(group, sent) for group in groups]
    complete = [
        repetition
        for repetition in repetitions
        if not repetition.errors and repetition.requests == load.requests
    ]
    good = [request for group in groups for request in group if not request.error]
    speeds = [(repetition.tokens_per_second, 1.0) for repetition in complete or repetitions]
    speed = ratio_interval(speeds)
    assert speed is not None
    incomplete = ""
    if len(complete) < load.repetitions or failed:
        what = f"{failed.total()} requests failed" if failed else "requests are missing"
        incomplete = (
            f"{len(complete)} of {load.repetitions} repetitions are complete; {what}: {why}"
        )
    setting = target.setting
    if counted is not None and not setting.is_known:
        k = len(counted.accepted_per_position) if counted.drafts else 0
        setting = replace(setting, k=k, is_known=True)
    return BenchRow(
        setting=setting,
        load=replace(load, workload=replace(load.workload, prompts=())),
        repetitions=tuple(repetitions),
        tokens_per_second=Interval(speed.value, max(speed.low, 0.0), speed.high),
        **_latencies(good),
        prompt_tokens=fmean(request.prompt_tokens or 0 for request in good),
        output_tokens=fmean(request.output_tokens or 0 for request in good),
        acceptance=acceptance_in(counted, setting) if counted else None,
        usd_per_million_tokens=usd_per_million(target.usd_per_hour, speed.value),
        saturated=queue_reason(load, good, waiting),
        incomplete=incomplete,
        sender_cpu_share=highest(repetition.sender_cpu_share for repetition in repetitions),
        machine_cpu_share=highest(repetition.machine_cpu_share for repetition in repetitions),
    )


def _repetition(requests: Sequence[SentRequest], sent: Sent) -> Repetition:
    good = [request for request in requests if not request.error]
    start, end = min(request.start for request in requests), max(request.end for request in good)
    readings = [reading for reading in sent.cpu if start <= reading.at <= end]
    times = times_of(request.end - request.start for request in good)
    assert times is not None
    return Repetition(
        seconds=max(end - start, 1e-9),
        requests=len(requests),
        output_tokens=sum(request.output_tokens or 0 for request in good),
        prompt_tokens=sum(request.prompt_tokens or 0 for request in good),
        **_latencies(good),
        request_seconds=times,
        errors=tuple(request.error for request in requests if request.error),
        sender_cpu_share=fmean(reading.sender for reading in readings) if readings else None,
        machine_cpu_share=fmean(reading.machine for reading in readings) if readings else None,
    )


def _latencies(good: Sequence[SentRequest]) -> dict[str, Times | None]:
    """TTFT, ITL per output, and the time per token after the first, of requests that succeeded. The
    first output counts as one token."""
    return {
        "ttft": times_of(request.ttft for request in good if request.ttft is not None),
        "itl": times_of(gap for request in good for gap in request.gaps),
        "tpot": times_of(
            sum(request.gaps) / (request.output_tokens - 1)
            for request in good
            if request.gaps and request.output_tokens and request.output_tokens > 1
        ),
    }


def times_of(times: Iterable[float]) -> Times | None:
    """Mean and percentiles; ``None`` without a value."""
    values = list(times)
    if not values:
        return None
    several = values if len(values) > 1 else [*values, *values]
    cuts = statistics.quantiles(several, n=100, method="inclusive")
    return Times(fmean(values), cuts[49], cuts[89], cuts[98], len(values))


def queue_reason(
    load: BenchLoad, good: Sequence[SentRequest], waiting: Sequence[tuple[float, float]]
) -> str:
    """Why requests of this load wait in a queue; empty if they do not. By the engine's own gauge
    where it can be read, else by the times: most requests wait longer for their first token than
    for all others."""
    if load.concurrency == 1 or not good:
        return ""
    start, end = min(request.start for request in good), max(request.end for request in good)
    inside = [requests for at, requests in waiting if start <= at <= end]
    if len(inside) >= 2 and median(inside) > 0:
        return f"{median(inside):.0f} of {load.concurrency} requests wait in the engine's queue"
    timed = [
        (request.ttft, request.end - request.start - request.ttft)
        for request in good
        if request.ttft is not None
    ]
    if len(timed) < 8:  # too few to say whether they waited
        return ""
    first, rest = median(ttft for ttft, _ in timed), median(rest for _, rest in timed)
    if first > rest > 0:
        return f"requests wait {first:.2g} s for the first token, and {rest:.2g} s for the others"
    return ""


def with_saturation(rows: Sequence[BenchRow]) -> tuple[BenchRow, ...]:
    """The rows; one is saturated whose tokens per second are hardly more than those of a smaller
    load of the same setting and workload."""
    marked = []
    for row in rows:
        smaller = [
            other
            for other in rows
            if (other.setting, other.load.workload) == (row.setting, row.load.workload)
            and other.load.concurrency < row.load.concurrency
            and not other.incomplete
        ]
        if smaller and not row.incomplete and not row.saturated:
            best = max(smaller, key=lambda other: other.tokens_per_second.value)
            # More requests must give 2 % more tokens.
            if row.tokens_per_second.value < 1.02 * best.tokens_per_second.value:
                load = format_requests(best.load.concurrency)
                row = replace(row, saturated=f"no more tokens per second than with {load}")
        marked.append(row)
    return tuple(marked)
