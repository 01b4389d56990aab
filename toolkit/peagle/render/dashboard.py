"""The CloudWatch dashboard of a deployment.

Requests, errors and TTFT are SageMaker's metrics. ITL, KV cache, acceptance, tokens and their cost
are queries of the endpoint's log, since a metric filter cannot take the number out of ``35.2%,``;
so they are the same for AWS's image and for the toolkit's, whose lines are JSON. A log stream is
called ``<variant>/<instance>``: a candidate of a comparison is not counted.
"""

from __future__ import annotations

import json
from typing import Any

from peagle.engine_log import log_interval
from peagle.planning.plan import Plan
from peagle.planning.runtime import prefixed_name
from peagle.planning.weights import portable_pair
from peagle.render.alarms import METRIC_NAMESPACE, log_of, metric_dimensions
from peagle.render.requests import VARIANT
from peagle.text import format_usd, k_text

_HEIGHT, _HEADING, _WIDTH = 6, 2, 8
"""Three widgets side by side; a dashboard has 24 columns."""

_LOAD = (
    "filter @message like /Avg generation throughput/"
    " | parse @message /generation throughput: (?<tokens>[0-9.]+) tokens/"
    " | parse @message /Running: (?<running>[0-9]+) reqs/"
    " | parse @message /KV cache usage: (?<kv>[0-9.]+)%/"
)
_DRAFTS = (
    "filter @message like /SpecDecoding metrics/"
    " | parse @message /Accepted: (?<accepted>[0-9]+) tokens/"
    " | parse @message /Drafted: (?<drafted>[0-9]+) tokens/"
)


def dashboard_name(endpoint: str, region: str) -> str:
    """Such as ``peagle-tiny-us-east-1``: dashboards are the same in all regions."""
    return f"{prefixed_name(endpoint)}-{region}"


def dashboard_body(plan: Plan) -> dict[str, Any]:
    """The body of PutDashboard: a heading, and the charts of the plan's variant."""
    place = {"x": 0, "y": 0, "width": 24, "height": _HEADING}
    properties = {"markdown": _heading(plan)}
    widgets: list[dict[str, Any]] = [{"type": "text", **place, "properties": properties}]
    for index, chart in enumerate(_charts(plan)):
        row, column = divmod(index, 24 // _WIDTH)
        top = _HEADING + row * _HEIGHT
        place = {"x": column * _WIDTH, "y": top, "width": _WIDTH, "height": _HEIGHT}
        widgets.append({**chart, **place})
    return {"widgets": widgets}


def dashboard_text(plan: Plan) -> str:
    """The dashboard's body as PutDashboard takes it."""
    return json.dumps(dashboard_body(plan), ensure_ascii=False)


def _heading(plan: Plan) -> str:
    price = plan.price_per_hour_usd
    cost = f"{format_usd(price)} per hour" if price is not None else "price unknown"
    speculation = k_text(plan.speculation.k if plan.speculation else None)
    copies = f" with {plan.engines} copies" if plan.copies else ""
    return (
        f"# {plan.name}\n"
        f"{portable_pair(plan.pair)} on {plan.instance_count} x {plan.instance_type}{copies}, "
        f"{speculation}, {cost}. Live in a terminal: `peagle top {plan.name}`"
    )


def _charts(plan: Plan) -> list[dict[str, Any]]:
    """The charts of the plan's variant, or of the copies on its endpoint."""
    engine, per_engine = ("copy", "Copy") if plan.copies else ("instance", "Instance")
    common = {"region": plan.region, "view": "timeSeries"}
    interval = f"{log_interval(plan.environment):g}"

    def metric(name: str, stat: str, label: str, hidden: bool = False) -> list[Any]:
        options: dict[str, Any] = {"stat": stat, "label": label}
        if hidden:  # an expression uses it by its id
            options |= {"id": label, "visible": False}
        pairs = metric_dimensions(plan.name, plan.copies is not None).items()
        return [METRIC_NAMESPACE, name, *(word for pair in pairs for word in pair), options]

    def chart(title: str, *metrics: list[Any]) -> dict[str, Any]:
        shown = {"period": 60, "metrics": [*metrics], "yAxis": {"left": {"min": 0}}}
        return {"type": "metric", "properties": {"title": title, **common, **shown}}

    def query(title: str, lines: str, stats: str, more: str = "") -> dict[str, Any]:
        of_variant = "" if plan.copies else f' | filter @logStream like "{VARIANT}/"'
        text = f"SOURCE '{log_of(plan)}' | {lines}{of_variant}{more} | stats {stats}"
        return {"type": "log", "properties": {"title": title, **common, "query": text}}

    concurrent = f"ConcurrentRequestsPer{'Copy' if plan.copies else 'Model'}"
    percentiles = ("p50", "p90", "p99")
    charts = [
        chart("Requests per minute",
              metric("Invocations", "Sum", "requests"),
              metric("Invocation4XXErrors", "Sum", "4xx"),
              metric("Invocation5XXErrors", "Sum", "5xx")),
        chart("Time to first token (ms)",
              *(metric("FirstChunkLatency", stat, stat, hidden=True) for stat in percentiles),
              *([{"expression": f"{stat} / 1000", "label": stat}] for stat in percentiles)),
        chart(f"Requests in progress per {engine}",
              metric(concurrent, "Average", "mean"),
              metric(concurrent, "Maximum", "highest")),
        query("Inter-token latency (ms)", _LOAD,
              "1000 * sum(running) / sum(tokens) as itl by bin(1m)",
              " | filter running > 0 and tokens > 0"),
        query("KV cache in use (%)", _LOAD, "avg(kv) as mean, max(kv) as highest by bin(1m)"),
        query("Output tokens per second", _LOAD,
              f"sum(tokens) * {interval} / 60 as tokens by bin(1m)"),
    ]  # fmt: skip
    if plan.speculation is not None:
        floor, k = plan.speculation.acceptance_floor, plan.speculation.k
        title = "Acceptance length" + (f" (floor {floor:g})" if floor is not None else "")
        stats = f"1 + {k} * sum(accepted) / sum(drafted) as length by bin(1m)"
        charts.append(query(title, _DRAFTS, stats, " | filter drafted > 0"))
    if plan.price_per_hour_usd is not None:
        # Per hour, of all instances or copies: SageMaker counts each request as 1, and as 1 divided
        # by their number. Per token, of those whose log has tokens: a query of the log has no
        # metrics.
        each = f"{round(plan.price_per_hour_usd / plan.engines, 6):g}"
        cost = f"{each} * {300 / 3600:.6g} * 1000000 / (sum(tokens) * {interval})"
        charts += [
            chart("USD per hour, in minutes with requests",
                  metric("Invocations", "Sum", "requests", hidden=True),
                  metric(f"InvocationsPer{per_engine}", "Sum", "each", hidden=True),
                  [{"expression": f"{each} * requests / each", "label": "usd"}]),
            query(f"USD per million output tokens, each {engine} at work", _LOAD,
                  f"count_distinct(@logStream) * {cost} as usd by bin(5m)",
                  " | filter tokens > 0"),
        ]  # fmt: skip
    return charts


def has_dashboard(plan: Plan) -> bool:
    """Whether the plan has a dashboard."""
    return plan.observe is not None and plan.observe.dashboard


def log_retention_days(plan: Plan) -> int | None:
    """How long the endpoint's log is kept, which then exists before the endpoint; ``None`` where
    the plan does not say."""
    return plan.observe.log_retention_days if plan.observe else None
