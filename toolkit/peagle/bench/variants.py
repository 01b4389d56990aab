"""Compare the two variants of an endpoint under the requests that it gets: times, acceptance, cost.

CloudWatch has the requests and times of each variant, per minute; vLLM's lines of statistics, in
the log streams ``<variant>/<instance>``, have the tokens and drafts. Both are summed by minute, and
the spread of the minutes gives the 95 % confidence intervals. Nothing is sent to the endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.cloudwatch import MetricQuery, metric_data
from peagle.aws.errors import AccessDenied, Missing
from peagle.bench.result import Interval, ratio_interval
from peagle.deploy.revisions import CANDIDATE, compares_now, required_comparison, usd_per_hour_of
from peagle.deploy.state import Deployment, Served
from peagle.deploy.usage import log_seconds
from peagle.engine.usage import weighted_mean
from peagle.engine_log import counters_in_log, generated_in_log
from peagle.errors import Fix, Refused
from peagle.protocol import log_group
from peagle.render.alarms import METRIC_NAMESPACE, metric_dimensions
from peagle.render.requests import VARIANT
from peagle.text import format_duration, format_requests

_STREAMED = 0.99
"""From this share of streamed requests on, the time between tokens is known."""

_MUCH = 1.25
"""Loads of an instance that differ by this factor are not compared without a word."""

_FEW_REQUESTS = 30

_COMPARED = (
    "seconds_per_token", "itl_seconds", "ttft_seconds", "latency_seconds", "acceptance_length",
    "usd_per_million_tokens",
)  # fmt: skip


@dataclass
class Minute:
    """What one variant did in one period. ``errors`` are those of the container, ``rejected`` and
    ``failed`` the requests that ended with a 4xx and a 5xx status. Times are sums, in seconds;
    ``ended`` and ``streams`` count the requests whose time, and whose time to the first token, are
    in them."""

    requests: float = 0.0
    errors: float = 0.0
    latency: float = 0.0
    ended: float = 0.0
    first: float = 0.0
    streams: float = 0.0
    tokens: float = 0.0
    accepted: float = 0.0
    drafts: float = 0.0
    rejected: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True)
class Variant:
    """A variant and what it did by period: the start of each in epoch seconds. Half and nine tenths
    of the streamed requests have their first token within ``ttft_p50`` and ``ttft_p90`` seconds."""

    name: str
    pair: str
    k: int
    instance_type: str
    instances: int
    usd_per_hour: float | None
    minutes: Mapping[float, Minute] = field(default_factory=dict)
    ttft_p50: float | None = None
    ttft_p90: float | None = None


@dataclass(frozen=True)
class VariantResult:
    """The numbers of a variant; ``None`` where one is unknown. Times are means, in seconds, but for
    the percentiles of the time to the first token, which have no interval. ``seconds_per_token`` is
    the whole time of the requests over their tokens. ``in_progress`` are the mean concurrent
    requests of an instance. ``share`` is that of all requests."""

    variant: str
    pair: str
    k: int
    instance_type: str
    instances: int
    usd_per_hour: float | None
    requests: int
    share: float | None
    errors: int
    rejected: int
    failed: int
    in_progress: float | None
    output_tokens: int | None
    ttft_seconds: Interval | None
    ttft_p50_seconds: float | None
    ttft_p90_seconds: float | None
    itl_seconds: Interval | None
    latency_seconds: Interval | None
    seconds_per_token: Interval | None
    acceptance_length: Interval | None
    usd_per_million_tokens: Interval | None

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
    """Both variants, the one in service first, from ``since`` to ``until`` (epoch seconds).

    ``changes`` are the candidate's numbers relative to those in service: -0.1 is 10 % less.
    ``faster`` is the variant with less time per token, ``None`` where the interval of the
    difference contains 0 or nothing is known. ``notes`` say what is unknown, or not comparable.
    """

    name: str
    since: float
    until: float
    variants: tuple[VariantResult, VariantResult]
    changes: dict[str, Interval]
    faster: str | None
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def compare_variants(
    name: str,
    first: Variant,
    second: Variant,
    since: float,
    until: float,
    period: float,
    notes: Sequence[str] = (),
) -> VariantComparison:
    """The comparison of two variants. ``period`` is the length of a minute in seconds."""
    every = [*first.minutes.values(), *second.minutes.values()]
    total = sum(minute.requests for minute in every)
    before, after = (_result(variant, total, until - since, period) for variant in (first, second))
    changes = {
        number: change
        for number in _COMPARED
        if (change := relative_change(getattr(before, number), getattr(after, number)))
    }
    faster = None
    if decisive := changes.get("seconds_per_token"):
        faster = second.name if decisive.high < 0 else first.name if decisive.low > 0 else None
    results = (before, after)
    more = _notes((first, second), results, until - since, period)
    return VariantComparison(name, since, until, results, changes, faster, (*notes, *more))


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """The change from ``before`` to ``after``, relative to ``before``, with the interval that the
    errors of both give (delta method); ``None`` where one is unknown, or its error is: one minute
    has no spread."""
    if before is None or after is None or before.value <= 0 or after.value <= 0:
        return None
    if before.low == before.high or after.low == after.high:
        return None
    ratio = after.value / before.value
    half = ratio * math.hypot(before.spread, after.spread)
    return Interval(ratio - 1, ratio - 1 - half, ratio - 1 + half)


def _result(variant: Variant, total: float, seconds: float, period: float) -> VariantResult:
    minutes, price = list(variant.minutes.values()), variant.usd_per_hour
    whole = Minute(
        *(sum(getattr(minute, part.name) for minute in minutes) for part in fields(Minute))
    )
    # Tokens without a request are those of a proof.
    is_answered = bool(whole.ended and whole.tokens)
    is_streamed = whole.streams >= _STREAMED * whole.ended and whole.tokens > whole.ended > 0

    def ratio(
        part: Callable[[Minute], float], weight: Callable[[Minute], float], known: bool = True
    ) -> Interval | None:
        return ratio_interval([(part(one), weight(one)) for one in minutes]) if known else None

    in_progress = None
    if whole.ended and seconds > 0 and variant.instances:
        in_progress = whole.latency / seconds / variant.instances
    cost = (price or 0.0) * 1e6 * period / 3600
    return VariantResult(
        variant=variant.name,
        pair=variant.pair,
        k=variant.k,
        instance_type=variant.instance_type,
        instances=variant.instances,
        usd_per_hour=price,
        requests=round(whole.requests),
        share=whole.requests / total if total else None,
        errors=round(max(whole.errors, whole.rejected + whole.failed)),
        rejected=round(whole.rejected),
        failed=round(whole.failed),
        in_progress=in_progress,
        output_tokens=round(whole.tokens) or None,
        ttft_seconds=ratio(lambda one: one.first, lambda one: one.streams),
        ttft_p50_seconds=variant.ttft_p50,
        ttft_p90_seconds=variant.ttft_p90,
        itl_seconds=ratio(
            lambda one: one.latency - one.first, lambda one: one.tokens - one.ended, is_streamed
        ),
        latency_seconds=ratio(lambda one: one.latency, lambda one: one.ended),
        seconds_per_token=ratio(lambda one: one.latency, lambda one: one.tokens, is_answered),
        # A verification step yields one token besides those that are accepted.
        acceptance_length=ratio(lambda one: one.accepted + one.drafts, lambda one: one.drafts),
        usd_per_million_tokens=ratio(
            lambda one: cost, lambda one: one.tokens, is_answered and price is not None
        ),
    )


def _notes(
    variants: Sequence[Variant], results: Sequence[VariantResult], seconds: float, period: float
) -> Iterator[str]:
    """What is unknown, and what makes the two hard to compare."""
    for variant, result in zip(variants, results, strict=True):
        name = result.variant
        if result.only_errors:
            continue  # the verdict says so
        if result.requests < _FEW_REQUESTS:
            yield f"{name} has answered {format_requests(result.requests)}: too few to decide"
        elif result.seconds_per_token is None:
            yield f"the time per token of {name} is unknown: no tokens in its log"
        elif result.itl_seconds is None:
            yield f"the time between tokens of {name} is unknown: not all requests stream"
        if sum(minute.requests > 0 for minute in variant.minutes.values()) == 1:
            yield f"{name} has requests in one minute only, so its intervals are unknown"
        busy = len(variant.minutes) * period
        if result.usd_per_million_tokens and busy < seconds:
            yield (
                f"USD per token of {name} counts {format_duration(busy)} with requests, of "
                f"{format_duration(seconds)}: idle instances cost the same"
            )
    loads = [result.in_progress for result in results if result.in_progress]
    if len(loads) == 2 and max(loads) > _MUCH * min(loads):
        texts = " and ".join(f"{load:.2g}" for load in loads)
        yield (
            f"the instances have different loads ({texts} requests in progress), which changes "
            "times and cost: compare at equal loads, such as --share 50% with equal instances"
        )


_MICROSECONDS = 1e6

_METRICS = {
    "requests": ("Invocations", "Sum", 1.0),
    "errors": ("InvocationModelErrors", "Sum", 1.0),
    "rejected": ("Invocation4XXErrors", "Sum", 1.0),
    "failed": ("Invocation5XXErrors", "Sum", 1.0),
    "latency": ("ModelLatency", "Sum", _MICROSECONDS),
    "ended": ("ModelLatency", "SampleCount", 1.0),
    "first": ("FirstChunkLatency", "Sum", _MICROSECONDS),
    "streams": ("FirstChunkLatency", "SampleCount", 1.0),
}
"""Number of ``Minute`` -> metric, statistic, and what it is divided by."""

_LINES = '"throughput"'
"""CloudWatch's filter for vLLM's lines of statistics."""

Minutes = dict[str, dict[float, Minute]]
"""Variant -> start of a period in epoch seconds -> what the variant did."""


def comparison_report(
    aws: Aws, record: Deployment, last_seconds: float | None = None, clock: Clock | None = None
) -> VariantComparison:
    """The two variants of the deployment since the comparison began or its share changed, or in
    the ``last_seconds``.

    What may not be read is unknown, and a note says so. Raises Refused when the endpoint does not
    serve two variants, and CloudError.
    """
    comparison, serving = required_comparison(record), record.serving
    live = sagemaker.describe(aws, record.name)
    begun = comparison.since
    if live is None or serving is None or begun is None or not compares_now(record, live):
        raise Refused(
            f"the candidate of {record.name} does not serve yet, or no longer",
            Fix("look at it", ("peagle", "status", record.name)),
            code="comparison-not-running",
        )
    now = (clock or Clock()).now()
    # SageMaker publishes once a minute; the sandbox at once.
    period = 60 if aws.is_amazon else 1
    since = begun if last_seconds is None else max(begun, now - last_seconds)
    start, end = math.ceil(since / period) * period, math.floor(now / period) * period
    served = {VARIANT: serving.served, CANDIDATE: comparison.candidate.served}
    minutes: Minutes = {name: {} for name in served}
    percentiles: dict[str, dict[str, float | None]] = {}
    notes: list[str] = []
    try:
        if end > start:
            _add_metrics(aws, record.name, minutes, (start, end), period)
            percentiles = _percentiles(aws, record.name, tuple(served), (start, end))
    except AccessDenied as denied:
        notes.append(f"requests and times are unknown: {denied.message}")
    try:
        _add_log(aws, record.name, minutes, served, (start, end), period)
    except AccessDenied as denied:
        notes.append(f"tokens, acceptance and cost per token are unknown: {denied.message}")
    # CloudWatch is minutes behind the log: the last period with requests there is the end.
    requests = [
        at for by_start in minutes.values() for at, minute in by_start.items() if minute.requests
    ]
    until = min(max(requests) + period, end) if requests else end
    prices = usd_per_hour_of(record, live)
    first, second = (
        Variant(
            name=name,
            pair=revision.pair,
            k=revision.k,
            instance_type=revision.instance_type,
            instances=live.running.get(name, 0),
            usd_per_hour=prices[name],
            minutes={at: minute for at, minute in minutes[name].items() if at < until},
            **percentiles.get(name, {}),
        )
        for name, revision in served.items()
    )
    if aws.in_sandbox:
        notes.append(
            "the price is that of the plan's instances on AWS, the tokens are this machine's: "
            "USD per token compares the two plans, and is not a cost on AWS"
        )
    return compare_variants(record.name, first, second, start, until, period, notes)


def _add_metrics(
    aws: Aws, name: str, minutes: Minutes, span: tuple[float, float], period: int
) -> None:
    places = {
        f"q{place}_{number}": (variant, number)
        for place, variant in enumerate(minutes)
        for number in _METRICS
    }
    queries = {}
    for query, (variant, number) in places.items():
        metric, statistic, _ = _METRICS[number]
        dimensions = metric_dimensions(name, False, variant)
        queries[query] = MetricQuery(METRIC_NAMESPACE, metric, statistic, dimensions, period)
    for query, series in metric_data(aws, queries, *span).items():
        variant, number = places[query]
        for start, value in series.items():
            if start >= span[0]:
                minute = minutes[variant].setdefault(start, Minute())
                setattr(minute, number, value / _METRICS[number][2])


def _percentiles(
    aws: Aws, name: str, variants: tuple[str, ...], span: tuple[float, float]
) -> dict[str, dict[str, float | None]]:
    """Variant -> the percentiles of the time to the first token, in seconds; ``None``: unknown.

    CloudWatch computes them of all requests of one long period, at most a day; where it divides the
    time, they are the mean of its parts, weighted by their requests.
    """
    long = min(86_400, math.ceil((span[1] - span[0]) / 60) * 60)
    queries = {
        f"q{place}_{stat.lower()}": MetricQuery(
            METRIC_NAMESPACE,
            "FirstChunkLatency",
            stat,
            metric_dimensions(name, False, variant),
            long,
        )
        for place, variant in enumerate(variants)
        for stat in ("p50", "p90", "SampleCount")
    }
    series = metric_data(aws, queries, *span)
    return {
        variant: {
            f"ttft_{stat}": weighted_mean(
                (value / _MICROSECONDS, series[f"q{place}_samplecount"].get(begun, 0.0))
                for begun, value in series[f"q{place}_{stat}"].items()
            )
            for stat in ("p50", "p90")
        }
        for place, variant in enumerate(variants)
    }


def _add_log(
    aws: Aws,
    name: str,
    minutes: Minutes,
    served: Mapping[str, Served],
    span: tuple[float, float],
    period: int,
) -> None:
    seconds = {
        variant: log_seconds(settings, aws.in_sandbox) for variant, settings in served.items()
    }
    events = aws.items(
        "logs", "filter_log_events", "events",
        logGroupName=log_group(name), filterPattern=_LINES,
        startTime=int(span[0] * 1000), endTime=int(span[1] * 1000),
    )  # fmt: skip
    with suppress(Missing):  # no log yet
        for event in events:
            variant, line = event["logStreamName"].partition("/")[0], event["message"]
            if variant not in minutes:
                continue
            start = event["timestamp"] / 1000 // period * period
            minute = minutes[variant].setdefault(start, Minute())
            minute.tokens += (generated_in_log(line) or 0.0) * seconds[variant]
            if (counted := counters_in_log(line)) is not None:
                minute.accepted += counted.accepted_tokens
                minute.drafts += counted.drafts
