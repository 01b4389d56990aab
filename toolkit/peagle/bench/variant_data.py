"""Read what the variants of an endpoint did: from CloudWatch's metrics and from the log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.cloudwatch import MetricQuery, metric_data
from peagle.aws.errors import AccessDenied, Missing
from peagle.bench.variants import (
    Minute,
    Variant,
    VariantComparison,
    compare_variants,
    whole_periods,
)
from peagle.deploy.served import Served
from peagle.deploy.state import Deployment
from peagle.deploy.usage import log_seconds
from peagle.deploy.variants import CANDIDATE, compares_now, required_comparison, usd_per_hour_of
from peagle.engine.usage import weighted_mean
from peagle.engine_log import counters_in_log, generated_in_log
from peagle.errors import Fix, Refused
from peagle.protocol import log_group
from peagle.render.metrics import METRIC_NAMESPACE
from peagle.render.requests import VARIANT

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
