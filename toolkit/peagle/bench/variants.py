"""Compare the two variants of an endpoint under the requests that it gets: times, acceptance, cost.

CloudWatch has the requests and times of each variant, per minute; vLLM's lines of statistics, in
the log streams ``<variant>/<instance>``, have the tokens and drafts. Both are summed by minute, and
the spread of the minutes gives the 95 % confidence intervals. Nothing is sent to the endpoint.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.cloudwatch import MetricQuery, metric_data
from peagle.aws.errors import AccessDenied, Missing
from peagle.bench.result import Interval, ratio_interval
from peagle.deploy.revisions import (
    CANDIDATE,
    compares_now,
    compute_usd_per_hour,
    required_comparison,
)
from peagle.deploy.state import Deployment, Served
from peagle.deploy.status import log_seconds
from peagle.engine_log import counters_in_log, generated_in_log
from peagle.errors import Fix, Refused
from peagle.protocol import log_group
from peagle.render.alarms import METRIC_NAMESPACE, metric_dimensions
from peagle.render.requests import VARIANT
from peagle.text import format_requests

_COMPARED = (
    "seconds_per_token", "itl_seconds", "ttft_seconds", "latency_seconds", "acceptance_length",
    "usd_per_million_tokens",
)  # fmt: skip

_MICROSECONDS, _FIRST = 1e6, "FirstChunkLatency"
_METRICS = {
    "requests": ("Invocations", "Sum", 1.0),
    "errors": ("InvocationModelErrors", "Sum", 1.0),
    "rejected": ("Invocation4XXErrors", "Sum", 1.0),
    "failed": ("Invocation5XXErrors", "Sum", 1.0),
    "latency": ("ModelLatency", "Sum", _MICROSECONDS),
    "ended": ("ModelLatency", "SampleCount", 1.0),
    "first": (_FIRST, "Sum", _MICROSECONDS),
    "streams": (_FIRST, "SampleCount", 1.0),
}
"""Number of a ``Minute`` -> metric, statistic, and what it is divided by."""

Minute = Counter[str]
"""What one variant did in one period: the numbers of ``_METRICS``, and ``tokens``, ``accepted`` and
``drafts`` of the log. ``errors`` are those of the container, ``rejected`` and ``failed`` the
requests that ended with a 4xx and a 5xx status; ``ended`` and ``streams`` count the requests whose
time, and whose time to the first token, are in the sums."""

Minutes = Mapping[float, Minute]
"""Start of a period in epoch seconds -> what a variant did."""


@dataclass(frozen=True)
class VariantResult:
    """The numbers of a variant; ``None`` where one is unknown. Times are means, in seconds.
    ``in_progress`` are the mean concurrent requests of an instance."""

    variant: str
    pair: str
    k: int
    instance_type: str
    instances: int
    usd_per_hour: float | None
    requests: int = 0
    share: float | None = None
    errors: int = 0
    rejected: int = 0
    failed: int = 0
    in_progress: float | None = None
    output_tokens: int | None = None
    ttft_seconds: Interval | None = None
    itl_seconds: Interval | None = None
    latency_seconds: Interval | None = None
    seconds_per_token: Interval | None = None
    acceptance_length: Interval | None = None
    usd_per_million_tokens: Interval | None = None

    @property
    def only_errors(self) -> bool:
        """Whether it got requests and answered none of them."""
        return bool(self.requests) and self.errors >= self.requests

    @property
    def cause(self) -> str:
        """What the errors are, such as ``5 failed in the engine (5xx)``; empty without any."""
        counts = {
            "failed in the engine (5xx)": self.failed,
            "rejected by the engine (4xx)": self.rejected,
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)


@dataclass(frozen=True)
class VariantComparison:
    """Both variants, the one in service first. Times in epoch seconds; ``changes`` are relative:
    -0.1 is 10 % less. ``faster`` is ``None`` where the interval of the difference contains 0."""

    name: str
    since: float
    until: float
    variants: tuple[VariantResult, VariantResult]
    changes: dict[str, Interval]
    faster: str | None
    notes: tuple[str, ...]


def compare_variants(
    name: str,
    variants: Sequence[tuple[VariantResult, Minutes]],
    since: float,
    until: float,
    period: float,
    notes: Sequence[str] = (),
) -> VariantComparison:
    """The comparison of two variants, without their numbers yet, by what they did. ``period`` is
    the length of a minute in seconds."""
    total = sum(minute["requests"] for _, minutes in variants for minute in minutes.values())
    before, after = (_with_measurements(*each, total, until - since, period) for each in variants)
    changes = {
        number: change
        for number in _COMPARED
        if (change := relative_change(getattr(before, number), getattr(after, number)))
    }
    faster = None
    if decisive := changes.get("seconds_per_token"):
        slower = before.variant if decisive.low > 0 else None
        faster = after.variant if decisive.high < 0 else slower
    results = (before, after)
    return VariantComparison(
        name, since, until, results, changes, faster, (*notes, *_notes(results))
    )


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """The relative change, with the interval that the errors of both give (delta method); ``None``
    where one is unknown, or its error is: one minute has no spread."""
    if before is None or after is None or before.value <= 0 or after.value <= 0:
        return None
    if before.low == before.high or after.low == after.high:
        return None
    ratio = after.value / before.value
    half = ratio * math.hypot(before.spread, after.spread)
    return Interval(ratio - 1, max(ratio - 1 - half, -1.0), ratio - 1 + half)


def _with_measurements(
    variant: VariantResult, minutes: Minutes, total: float, seconds: float, period: float
) -> VariantResult:
    whole = sum(minutes.values(), Minute())
    # Tokens without a request are those of a proof.
    is_answered = bool(whole["ended"] and whole["tokens"])
    # The time between tokens is known where nearly all requests stream.
    is_streamed = whole["streams"] >= 0.99 * whole["ended"] and (
        whole["tokens"] > whole["ended"] > 0
    )
    cost = None if variant.usd_per_hour is None else variant.usd_per_hour * 1e6 * period / 3600

    def ratio(
        part: Callable[[Minute], float], weight: Callable[[Minute], float], is_measured: bool = True
    ) -> Interval | None:
        parts = [(part(minute), weight(minute)) for minute in minutes.values()]
        return ratio_interval(parts) if is_measured else None

    in_progress = None
    if whole["ended"] and seconds > 0 and variant.instances:
        in_progress = whole["latency"] / seconds / variant.instances
    return replace(
        variant,
        requests=round(whole["requests"]),
        share=whole["requests"] / total if total else None,
        errors=round(max(whole["errors"], whole["rejected"] + whole["failed"])),
        rejected=round(whole["rejected"]),
        failed=round(whole["failed"]),
        in_progress=in_progress,
        output_tokens=round(whole["tokens"]) or None,
        ttft_seconds=ratio(lambda m: m["first"], lambda m: m["streams"]),
        itl_seconds=ratio(
            lambda m: m["latency"] - m["first"], lambda m: m["tokens"] - m["ended"], is_streamed
        ),
        latency_seconds=ratio(lambda m: m["latency"], lambda m: m["ended"]),
        seconds_per_token=ratio(lambda m: m["latency"], lambda m: m["tokens"], is_answered),
        # A verification step yields one token besides those that are accepted.
        acceptance_length=ratio(lambda m: m["accepted"] + m["drafts"], lambda m: m["drafts"]),
        usd_per_million_tokens=ratio(
            lambda m: cost or 0.0, lambda m: m["tokens"], is_answered and cost is not None
        ),
    )


def _notes(results: Sequence[VariantResult]) -> Iterator[str]:
    """What is unknown, and what makes the two hard to compare."""
    for result in results:
        if result.only_errors:
            continue  # the verdict says so
        if result.requests < 30:
            requests = format_requests(result.requests)
            yield f"{result.variant} has answered {requests}: too few to decide"
        elif result.seconds_per_token is None:
            yield f"the time per token of {result.variant} is unknown: no tokens in its log"
        elif result.itl_seconds is None:
            yield f"the time between tokens of {result.variant} is unknown: not all requests stream"
    loads = [result.in_progress for result in results if result.in_progress]
    if len(loads) == 2 and max(loads) > 1.25 * min(loads):
        texts = " and ".join(f"{load:.2g}" for load in loads)
        yield (
            f"the instances have different loads ({texts} requests in progress), which changes "
            "times and cost: compare at equal loads, such as --share 50% with equal instances"
        )


def comparison_report(
    aws: Aws, record: Deployment, last_seconds: float | None = None, clock: Clock | None = None
) -> VariantComparison:
    """The two variants since the comparison began or its share changed, or in the ``last_seconds``.
    What may not be read is noted. Raises Refused when two do not serve, and CloudError."""
    comparison, serving, name = required_comparison(record), record.serving, record.name
    live = sagemaker.describe(aws, name)
    begun = comparison.since
    if live is None or serving is None or begun is None or not compares_now(record, live):
        raise Refused(
            f"the candidate of {name} does not serve yet, or no longer",
            Fix("look at it", ("peagle", "status", name)),
            code="comparison-not-running",
        )
    now = (clock or Clock()).now()
    # SageMaker publishes once a minute; the sandbox at once.
    period = 60 if aws.is_amazon else 1
    since = begun if last_seconds is None else max(begun, now - last_seconds)
    start, end = math.ceil(since / period) * period, math.floor(now / period) * period
    served = {VARIANT: serving.served, CANDIDATE: comparison.candidate.served}
    minutes, notes = _read_minutes(aws, name, served, (start, end), period)
    # CloudWatch is minutes behind the log: the last period with requests there is the end.
    requests = [
        at for by_start in minutes.values() for at, minute in by_start.items() if minute["requests"]
    ]
    until = min(max(requests) + period, end) if requests else end
    prices = compute_usd_per_hour(record, live)
    variants = [
        (
            VariantResult(
                variant=variant,
                pair=revision.pair,
                k=revision.k,
                instance_type=revision.instance_type,
                instances=live.running.get(variant, 0),
                usd_per_hour=prices[variant],
            ),
            {at: minute for at, minute in minutes[variant].items() if at < until},
        )
        for variant, revision in served.items()
    ]
    if aws.in_sandbox:
        notes.append(
            "the price is that of the plan's instances on AWS, the tokens are this machine's: "
            "USD per token compares the two plans, and is not a cost on AWS"
        )
    return compare_variants(name, variants, start, until, period, notes)


def _read_minutes(
    aws: Aws, name: str, served: Mapping[str, Served], span: tuple[float, float], period: int
) -> tuple[dict[str, dict[float, Minute]], list[str]]:
    """What each variant did, and what may not be read."""
    start, end = span
    minutes: dict[str, dict[float, Minute]] = {variant: {} for variant in served}
    notes: list[str] = []
    queries, places = dict[str, MetricQuery](), dict[str, tuple[str, str]]()
    for place, variant in enumerate(served):
        dimensions = metric_dimensions(name, False, variant)
        for number, (metric, statistic, _) in _METRICS.items():
            query = f"q{place}_{number}"
            places[query] = variant, number
            queries[query] = MetricQuery(METRIC_NAMESPACE, metric, statistic, dimensions, period)

    def add(variant: str, at: float, number: str, value: float) -> None:
        minute = minutes[variant].setdefault(at, Minute())
        minute[number] += value  # type: ignore[assignment]  # counters hold any number

    try:
        if end > start:
            for query, values in metric_data(aws, queries, *span).items():
                variant, number = places[query]
                for at, value in values.items():
                    if at >= start:
                        add(variant, at, number, value / _METRICS[number][2])
    except AccessDenied as denied:
        notes.append(f"requests and times are unknown: {denied.message}")
    log = aws.items(
        "logs", "filter_log_events", "events",
        logGroupName=log_group(name), filterPattern='"throughput"',  # vLLM's lines of statistics
        startTime=int(start * 1000), endTime=int(end * 1000),
    )  # fmt: skip
    try:
        with suppress(Missing):  # no log yet
            for event in log:
                variant, line = event["logStreamName"].partition("/")[0], event["message"]
                if variant in minutes:
                    at = event["timestamp"] / 1000 // period * period
                    seconds = log_seconds(served[variant], aws.in_sandbox)
                    add(variant, at, "tokens", (generated_in_log(line) or 0.0) * seconds)
                    if counted := counters_in_log(line):
                        add(variant, at, "accepted", counted.accepted_tokens)
                        add(variant, at, "drafts", counted.drafts)
    except AccessDenied as denied:
        notes.append(f"tokens, acceptance and cost per token are unknown: {denied.message}")
    return minutes, notes
