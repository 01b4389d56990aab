"""Compare the two variants of an endpoint under the requests that it gets: times, acceptance, cost.

CloudWatch has the requests and times of each variant, per minute; vLLM's lines of statistics, in
the log streams ``<variant>/<instance>``, have the tokens and drafts. Both are summed by minute, and
the spread of the minutes gives the 95 % confidence intervals. Nothing is sent to the endpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import hypot
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.cloudwatch import MetricQuery, metric_data
from peagle.aws.errors import AccessDenied, Missing
from peagle.bench.models import Interval, ratio_interval
from peagle.deploy.revisions import CANDIDATE, compares_now, required_comparison, usd_per_hour_of
from peagle.deploy.state import Deployment, Served
from peagle.deploy.usage import log_seconds
from peagle.engine.usage import weighted_mean
from peagle.engine_log import counters_in_log, generated_in_log
from peagle.errors import Fix, Refused
from peagle.protocol import log_group
from peagle.render.metrics import METRIC_NAMESPACE
from peagle.render.requests import VARIANT
from peagle.text import format_duration, format_requests

_STREAMED = 0.99
"""From this share of streamed requests on, the time between tokens is known."""

_MUCH = 1.25
"""Loads of an instance that differ by this factor are not compared without a word."""

_FEW_REQUESTS = 30

_TIMES = ("seconds_per_token", "itl_seconds", "ttft_seconds", "latency_seconds")
_COMPARED = (*_TIMES, "acceptance_length", "usd_per_million_tokens")


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
    total = sum(one.requests for variant in (first, second) for one in variant.minutes.values())
    results = (
        _result(first, total, since, until, period),
        _result(second, total, since, until, period),
    )
    changes = {
        number: change
        for number in _COMPARED
        if (change := relative_change(getattr(results[0], number), getattr(results[1], number)))
    }
    decisive = changes.get("seconds_per_token")
    faster = None
    if decisive and decisive.high < 0:
        faster = second.name
    elif decisive and decisive.low > 0:
        faster = first.name
    idle = _idle_notes((first, second), results, until - since, period)
    return VariantComparison(
        name,
        since,
        until,
        results,
        changes,
        faster,
        (*notes, *_notes(results), *_spread_notes((first, second)), *idle),
    )


def relative_change(before: Interval | None, after: Interval | None) -> Interval | None:
    """The change from ``before`` to ``after``, relative to ``before``, with the interval that the
    errors of both give (delta method); ``None`` where one is unknown, or its error is: one minute
    has no spread."""
    if before is None or after is None or before.value <= 0 or after.value <= 0:
        return None
    if before.low == before.high or after.low == after.high:
        return None
    ratio = after.value / before.value
    errors = ((one.high - one.low) / 2 / one.value for one in (before, after))
    half = ratio * hypot(*errors)
    return Interval(ratio - 1, ratio - 1 - half, ratio - 1 + half)


def _result(
    variant: Variant, total: float, since: float, until: float, period: float
) -> VariantResult:
    minutes = list(variant.minutes.values())

    def ratio(
        part: Callable[[Minute], float], whole: Callable[[Minute], float], known: bool = True
    ) -> Interval | None:
        return ratio_interval([(part(one), whole(one)) for one in minutes]) if known else None

    requests, streams, ended, tokens, latency, rejected, failed = (
        sum(getattr(one, number) for one in minutes)
        for number in ("requests", "streams", "ended", "tokens", "latency", "rejected", "failed")
    )
    seconds = until - since
    streamed = bool(ended) and streams >= _STREAMED * ended and tokens > ended
    accepted = ratio(lambda one: one.accepted, lambda one: one.drafts)
    price = variant.usd_per_hour
    return VariantResult(
        variant=variant.name,
        pair=variant.pair,
        k=variant.k,
        instance_type=variant.instance_type,
        instances=variant.instances,
        usd_per_hour=price,
        requests=round(requests),
        share=requests / total if total else None,
        errors=round(max(sum(one.errors for one in minutes), rejected + failed)),
        rejected=round(rejected),
        failed=round(failed),
        in_progress=latency / seconds / variant.instances
        if ended and seconds > 0 and variant.instances
        else None,
        output_tokens=round(tokens) if tokens else None,
        ttft_seconds=ratio(lambda one: one.first, lambda one: one.streams),
        ttft_p50_seconds=variant.ttft_p50,
        ttft_p90_seconds=variant.ttft_p90,
        itl_seconds=ratio(
            lambda one: one.latency - one.first, lambda one: one.tokens - one.ended, streamed
        ),
        latency_seconds=ratio(lambda one: one.latency, lambda one: one.ended),
        seconds_per_token=ratio(
            lambda one: one.latency, lambda one: one.tokens, bool(ended and tokens)
        ),
        acceptance_length=_plus_one(accepted),
        usd_per_million_tokens=None
        if price is None
        else ratio(
            lambda one: price * 1e6 * period / 3600,
            lambda one: one.tokens,
            bool(ended and tokens),  # tokens without a request are those of a proof
        ),
    )


def _plus_one(accepted: Interval | None) -> Interval | None:
    """Each step yields one token besides those that are accepted."""
    if accepted is None:
        return None
    return Interval(accepted.value + 1, accepted.low + 1, accepted.high + 1)


def _notes(results: tuple[VariantResult, VariantResult]) -> list[str]:
    notes = []
    for one in results:
        if one.only_errors:
            continue  # the verdict says so
        if one.requests < _FEW_REQUESTS:
            answered = format_requests(one.requests)
            notes.append(f"{one.variant} has answered {answered}: too few to decide")
        elif one.seconds_per_token is None:
            notes.append(f"the time per token of {one.variant} is unknown: no tokens in its log")
        elif one.itl_seconds is None:
            notes.append(
                f"the time between tokens of {one.variant} is unknown: not all requests stream"
            )
    loads = [one.in_progress for one in results if one.in_progress]
    if len(loads) == 2 and max(loads) > _MUCH * min(loads):
        texts = " and ".join(f"{load:.2g}" for load in loads)
        notes.append(
            f"the instances have different loads ({texts} requests in progress), which changes "
            "times and cost: compare at equal loads, such as --share 50% with equal instances"
        )
    return notes


def _spread_notes(variants: Sequence[Variant]) -> list[str]:
    """That the numbers of a variant have no interval yet, where one minute is all there is."""
    return [
        f"{one.name} has requests in one minute only, which has no spread: its intervals, and the "
        "differences, are unknown"
        for one in variants
        if sum(minute.requests > 0 for minute in one.minutes.values()) == 1
    ]


def _idle_notes(
    variants: Sequence[Variant], results: Sequence[VariantResult], seconds: float, period: float
) -> list[str]:
    """That the cost per token is of the time in which a variant worked, where that is less."""
    found = []
    for variant, result in zip(variants, results, strict=True):
        busy = len(variant.minutes) * period
        if result.usd_per_million_tokens and busy < seconds:
            found.append(
                f"USD per token of {variant.name} counts {format_duration(busy)} with requests, of "
                f"{format_duration(seconds)}: idle instances cost the same"
            )
    return found


def whole_periods(since: float, until: float, period: float) -> tuple[float, float]:
    """The whole periods within two times."""
    return math.ceil(since / period) * period, math.floor(until / period) * period


_MICROSECONDS = 1e6
_DAY = 86_400
"""The longest period of CloudWatch's statistics."""
_PERIOD, _SANDBOX_PERIOD = 60, 1
"""SageMaker publishes once a minute; the sandbox at once."""

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
    period = _PERIOD if aws.is_amazon else _SANDBOX_PERIOD
    since = begun if last_seconds is None else max(begun, now - last_seconds)
    span = whole_periods(since, now, period)
    served = {VARIANT: serving.served, CANDIDATE: comparison.candidate.served}
    minutes: Minutes = {name: {} for name in served}
    notes: list[str] = []
    percentiles: dict[str, dict[str, float | None]] = {name: {} for name in served}
    try:
        _add_metrics(aws, record.name, minutes, span, period)
        percentiles |= _percentiles(aws, record.name, tuple(served), span)
    except AccessDenied as denied:
        notes.append(f"requests and times are unknown: {denied.message}")
    try:
        _add_log(aws, record.name, minutes, served, span, period)
    except AccessDenied as denied:
        notes.append(f"tokens, acceptance and cost per token are unknown: {denied.message}")
    until = _last_known(minutes, span[1], period)
    kept = {
        name: {start: one for start, one in found.items() if start < until}
        for name, found in minutes.items()
    }
    prices = usd_per_hour_of(record, live)
    first, second = (
        Variant(
            name=name,
            pair=one.pair,
            k=one.k,
            instance_type=one.instance_type,
            instances=live.running.get(name, 0),
            usd_per_hour=prices[name],
            minutes=kept[name],
            **percentiles[name],
        )
        for name, one in served.items()
    )
    if aws.in_sandbox:
        notes.append(
            "the price is that of the plan's instances on AWS, the tokens are this machine's: "
            "USD per token compares the two plans, and is not a cost on AWS"
        )
    return compare_variants(record.name, first, second, span[0], until, period, notes)


def _last_known(minutes: Minutes, end: float, period: int) -> float:
    """The end of the last period with requests in CloudWatch, which is minutes behind the log."""
    known = [start for found in minutes.values() for start, one in found.items() if one.requests]
    return min(max(known) + period, end) if known else end


def _add_metrics(
    aws: Aws, name: str, minutes: Minutes, span: tuple[float, float], period: int
) -> None:
    if span[1] <= span[0]:
        return
    places = {
        f"q{place}_{number}": (variant, number)
        for place, variant in enumerate(minutes)
        for number in _METRICS
    }
    queries = {
        query: MetricQuery(
            METRIC_NAMESPACE, *_METRICS[number][:2], _dimensions(name, variant), period
        )
        for query, (variant, number) in places.items()
    }
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

    CloudWatch computes them of all requests of one long period; where it divides the time, they are
    the mean of its parts, weighted by their requests.
    """
    if span[1] <= span[0]:
        return {}
    long = min(_DAY, math.ceil((span[1] - span[0]) / _PERIOD) * _PERIOD)
    stats = {"p50": "ttft_p50", "p90": "ttft_p90", "SampleCount": ""}
    queries = {
        f"q{place}_{stat.lower()}": MetricQuery(
            METRIC_NAMESPACE, "FirstChunkLatency", stat, _dimensions(name, variant), long
        )
        for place, variant in enumerate(variants)
        for stat in stats
    }
    found = metric_data(aws, queries, *span)
    return {
        variant: {
            number: weighted_mean(
                (value / _MICROSECONDS, found[f"q{place}_samplecount"].get(begun, 0.0))
                for begun, value in found[f"q{place}_{stat}"].items()
            )
            for stat, number in stats.items()
            if number
        }
        for place, variant in enumerate(variants)
    }


def _dimensions(endpoint: str, variant: str) -> dict[str, str]:
    return {"EndpointName": endpoint, "VariantName": variant}


def _add_log(
    aws: Aws,
    name: str,
    minutes: Minutes,
    served: Mapping[str, Served],
    span: tuple[float, float],
    period: int,
) -> None:
    seconds = {variant: log_seconds(one, aws.in_sandbox) for variant, one in served.items()}
    events = aws.items(
        "logs", "filter_log_events", "events",
        logGroupName=log_group(name), filterPattern=_LINES,
        startTime=int(span[0] * 1000), endTime=int(span[1] * 1000),
    )  # fmt: skip
    try:
        for event in events:
            variant = event["logStreamName"].partition("/")[0]
            if variant in minutes:
                start = event["timestamp"] / 1000 // period * period
                minute = partial(minutes[variant].setdefault, start)
                _add_line(event["message"], seconds[variant], minute(Minute()))
    except Missing:  # no log yet
        return


def _add_line(line: str, interval: float, minute: Minute) -> None:
    generated, counted = generated_in_log(line), counters_in_log(line)
    if generated is not None:
        minute.tokens += generated * interval
    if counted is not None:
        minute.accepted += counted.accepted_tokens
        minute.drafts += counted.drafts
