"""How a deployment is used now: SageMaker's metrics, vLLM's statistics, and the price.

vLLM writes a line every 10 seconds in which it works. The time between two tokens is computed from
them: requests that run, divided by the tokens per second that they get together.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.cloudwatch import PERIOD_SECONDS, MetricQuery, metric_data
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.runtime import LogEvent, Tail
from peagle.deploy.preflight import Preflight
from peagle.deploy.revisions import CANDIDATE, compares_now, shown_revision, usd_per_hour_of
from peagle.deploy.state import Deployment, Revision, Served
from peagle.deploy.status import endpoint_created, state_of, usd_per_hour_now
from peagle.engine.usage import WINDOW_SECONDS, Usage, weighted_mean
from peagle.engine_log import (
    LOG_SECONDS,
    EngineLoad,
    WarmStart,
    counters_in_log,
    load_in_log,
    log_interval,
    warm_start_in,
)
from peagle.errors import PeagleError
from peagle.protocol import Counters, acceptance_length, log_group
from peagle.render.alarms import METRIC_NAMESPACE, metric_dimensions
from peagle.render.requests import VARIANT
from peagle.text import usd_per_million

_POLL_SECONDS = 2.0

_SANDBOX_LOG_SECONDS = 1.0
"""Seconds between two lines of vLLM's statistics in the sandbox."""

_FRESH_INTERVALS = 4
"""An instance without a line for so long is idle."""

_LINES = '?"Avg generation throughput" ?"SpecDecoding metrics"'
_MICROSECONDS = 1e6
_STATISTICS = {
    "requests": ("Invocations", "Sum"),
    "errors": ("Invocation5XXErrors", "Sum"),
    "ttft_p50": ("FirstChunkLatency", "p50"),
    "ttft_p90": ("FirstChunkLatency", "p90"),
    "streams": ("FirstChunkLatency", "SampleCount"),
}


def endpoint_log(
    aws: Aws, record: Deployment, since: float | None = None, follow: bool = False
) -> Iterator[LogEvent]:
    """The lines of the endpoint's log, from ``since`` (epoch seconds; by default its creation) on;
    with ``follow`` it continues with new lines and never ends."""
    begun = since or endpoint_created(aws, record.name) or record.billing_since or 0.0
    tail = Tail(aws, record.name, begun, record.current.served.copies is not None)
    yield from tail.new()
    while follow:
        time.sleep(_POLL_SECONDS)
        yield from tail.new()


def reported_warm_start(aws: Aws, preflight: Preflight, begun: float) -> WarmStart | None:
    """What the log reports about a warm start of the engine that ``deploy`` has just started, which
    needs mounted weights; ``begun`` is when that deploy began, in epoch seconds."""
    plan = preflight.desired.plan
    if preflight.change not in ("create", "update") or not plan.mounts:
        return None
    created = endpoint_created(aws, plan.name) if preflight.change == "create" else 0
    try:
        events = Tail(aws, plan.name, created or begun, plan.copies is not None).drain()
    except PeagleError:
        return None  # the endpoint is in service; its log is optional
    return warm_start_in([event.raw for event in events])


def usage_of_endpoint(
    aws: Aws, record: Deployment, window_seconds: float = WINDOW_SECONDS
) -> Usage:
    """The use in the last ``window_seconds``, or since the endpoint was created: an earlier one of
    that name has the same log. During a comparison, each variant has its own numbers in
    ``variants``. What may not be read is missing, and the notes say so. Raises CloudError."""
    now = time.time()
    live = sagemaker.describe(aws, record.name)
    window_seconds = min(window_seconds, max(now - live.created, 1.0)) if live else window_seconds
    revision = shown_revision(record, live)
    copies = revision.served.copies is not None
    notes: list[str] = []
    logs = _statistics(aws, record.name, now - window_seconds, copies, notes)
    comparison = compares_now(record, live)
    whole = Usage(
        name=record.name,
        where="sandbox" if aws.in_sandbox else "aws",
        state=state_of(record, live),
        at=now,
        window_seconds=window_seconds,
        instances=live.instance_count if live else 0,
        usd_per_hour=usd_per_hour_now(record, live),
    )
    dimensions = metric_dimensions(record.name, copies)
    if live is None or comparison is None:
        used = _used(aws, whole, revision, dimensions, logs[VARIANT], notes)
        return replace(used, notes=tuple(notes))
    prices = usd_per_hour_of(record, live)
    variants = []
    for name, share, its_revision in (
        (VARIANT, 1 - comparison.share, revision),
        (CANDIDATE, comparison.share, comparison.candidate),
    ):
        running, price = live.running.get(name, 0), prices[name]
        part = replace(whole, variant=name, share=share, instances=running, usd_per_hour=price)
        its_dimensions = {**dimensions, "VariantName": name}
        variants.append(_used(aws, part, its_revision, its_dimensions, logs[name], notes))
    # Only sums: times, shares and acceptance are those of one plan.
    totals: dict[str, Any] = {}
    for number in ("requests_per_minute", "running", "waiting", "tokens_per_second"):
        values = [getattr(variant, number) for variant in variants]
        known = [value for value in values if value is not None]
        totals[number] = sum(known) if known else None
    return replace(
        whole,
        **totals,
        usd_per_million_tokens=usd_per_million(whole.usd_per_hour, totals["tokens_per_second"]),
        variants=tuple(variants),
        notes=tuple(dict.fromkeys(notes)),
    )


def _used(
    aws: Aws,
    usage: Usage,
    revision: Revision,
    dimensions: dict[str, str],
    statistics: LogStatistics,
    notes: list[str],
) -> Usage:
    """``usage`` with what the engines of a revision do: its metrics have these dimensions. A
    percentile of several minutes is the mean of theirs, weighted by their requests."""
    served, window_seconds = revision.served, usage.window_seconds
    queries = {
        query: MetricQuery(METRIC_NAMESPACE, metric, stat, dimensions)
        for query, (metric, stat) in _STATISTICS.items()
    }
    minutes: dict[str, dict[float, float]] = {query: {} for query in queries}
    try:
        minutes = metric_data(aws, queries, usage.at - window_seconds, usage.at)
    except AccessDenied as denied:
        notes.append(f"requests and TTFT are unknown: {denied.message}")
    answered, streams = minutes["requests"], minutes["streams"]
    count = sum(answered.values())
    by_minute: tuple[float, ...] = ()
    if answered:
        first, last = min(answered), max(answered)
        places = range(round((last - first) / PERIOD_SECONDS) + 1)
        by_minute = tuple(answered.get(first + place * PERIOD_SECONDS, 0.0) for place in places)
    p50, p90 = (
        weighted_mean(
            (value / _MICROSECONDS, streams.get(minute, 0.0))
            for minute, value in minutes[name].items()
        )
        for name in ("ttft_p50", "ttft_p90")
    )
    speculation = revision.plan.speculation if revision.plan else None
    interval = log_seconds(served, aws.in_sandbox)
    tokens = statistics.tokens_per_second(window_seconds, interval)
    newest = statistics.newest(usage.at - _FRESH_INTERVALS * interval)
    shares = [load.kv_cache_share for load in newest if load.kv_cache_share is not None]
    idle = 0.0 if statistics.loads and not newest else None  # all have been idle since
    return replace(
        usage,
        instance_type=served.instance_type,
        requests_per_minute=count * 60 / window_seconds if answered else None,
        requests_by_minute=by_minute,
        error_share=sum(minutes["errors"].values()) / count if count else None,
        ttft_p50=p50,
        ttft_p90=p90,
        running=sum(load.running for load in newest) if statistics.loads else None,
        waiting=sum(load.waiting for load in newest) if statistics.loads else None,
        itl=statistics.itl,
        tokens_per_second=tokens,
        kv_cache_share=sum(shares) / len(shares) if shares else idle,
        k=served.k or None,
        acceptance_length=acceptance_length(statistics.counters),
        acceptance_floor=speculation.acceptance_floor if speculation else None,
        usd_per_million_tokens=usd_per_million(usage.usd_per_hour, tokens),
    )


@dataclass
class LogStatistics:
    """The lines of statistics in a log: of each stream, which is one instance, in their order."""

    loads: dict[str, list[tuple[float, EngineLoad]]] = field(default_factory=dict)
    counters: Counters = field(default_factory=lambda: Counters())

    def add(self, stream: str, when: float, line: str) -> None:
        """Count a line of a stream; other lines are ignored."""
        counted, load = counters_in_log(line), load_in_log(line)
        if counted:
            self.counters += counted
        if load:
            self.loads.setdefault(stream, []).append((when, load))

    @property
    def _all(self) -> list[EngineLoad]:
        return [load for loads in self.loads.values() for _, load in loads]

    def newest(self, since: float) -> list[EngineLoad]:
        """The last line of each instance that is not older than ``since`` (epoch seconds)."""
        last = (loads[-1] for loads in self.loads.values())
        return [load for when, load in last if when >= since]

    @property
    def itl(self) -> float | None:
        """Mean seconds between two output tokens of a request, of intervals that end while
        requests run."""
        busy = [load for load in self._all if load.running and load.tokens_per_second]
        tokens = sum(load.tokens_per_second for load in busy)
        return sum(load.running for load in busy) / tokens if tokens else None

    def tokens_per_second(self, window_seconds: float, interval: float) -> float | None:
        """Output tokens of all instances per second of the window; ``interval`` is that between two
        lines, in seconds. An engine without work writes no lines."""
        if not self.loads:
            return None
        return sum(load.tokens_per_second for load in self._all) * interval / window_seconds


def log_seconds(served: Served, in_sandbox: bool) -> float:
    """Seconds between two lines of statistics."""
    return log_interval(served.variables, _SANDBOX_LOG_SECONDS if in_sandbox else LOG_SECONDS)


def _statistics(
    aws: Aws, name: str, start: float, copies: bool, notes: list[str]
) -> dict[str, LogStatistics]:
    """Variant -> the statistics of its instances; those of copies are the first variant's."""
    by_variant = {VARIANT: LogStatistics(), CANDIDATE: LogStatistics()}
    events = aws.items(
        "logs", "filter_log_events", "events", logGroupName=log_group(name, copies),
        startTime=int(start * 1000), filterPattern=_LINES,
    )  # fmt: skip
    try:
        for event in events:
            stream = event["logStreamName"]
            is_second = not copies and stream.startswith(f"{CANDIDATE}/")
            statistics = by_variant[CANDIDATE if is_second else VARIANT]
            statistics.add(stream, event["timestamp"] / 1000, event["message"])
    except Missing:
        notes.append("the endpoint has no log yet")
    except AccessDenied as denied:
        notes.append(f"ITL, KV cache, acceptance and tokens are unknown: {denied.message}")
    return by_variant
