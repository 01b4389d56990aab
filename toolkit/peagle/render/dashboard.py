"""The CloudWatch dashboard of a deployment.

Requests, errors and TTFT are SageMaker's metrics. ITL, KV cache, acceptance, tokens and their cost
are queries of the endpoint's log, since a metric filter cannot take the number out of ``35.2%,``;
so they are the same for AWS's image and for the toolkit's, whose lines are JSON. A log stream is
called ``<variant>/<instance>``, so that each variant has its own numbers.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peagle.engine_log import log_interval
from peagle.planning.plan import Plan
from peagle.planning.runtime import own_name
from peagle.planning.weights import portable_pair
from peagle.render.metrics import METRIC_NAMESPACE, log_of, metric_dimensions
from peagle.render.requests import VARIANT
from peagle.text import format_usd, k_text

_BIN_SECONDS = 300
_HEIGHT = 6
_HEADING = 2
_WIDTH = 8
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
    return f"{own_name(endpoint)}-{region}"


def dashboard_body(plan: Plan, beside: Mapping[str, Plan] | None = None) -> dict[str, Any]:
    """The body of PutDashboard. ``beside`` are the plans of other variants of the endpoint, by
    their names: each variant has its own charts."""
    widgets = _of_variant(plan, VARIANT, 0)
    for variant, other in (beside or {}).items():
        below = max(widget["y"] + widget["height"] for widget in widgets)
        widgets += _of_variant(other, variant, below)
    return {"widgets": widgets}


def _of_variant(plan: Plan, variant: str, y: int) -> list[dict[str, Any]]:
    """The heading and the charts of one variant, from the row ``y`` on."""
    charts = _Charts(plan, variant)
    return [_heading(plan, variant, y), *_placed(charts.all(), y + _HEADING)]


def _heading(plan: Plan, variant: str, y: int) -> dict[str, Any]:
    price = plan.price_per_hour_usd
    cost = f"{format_usd(price)} per hour" if price is not None else "price unknown"
    speculation = k_text(plan.speculation.k if plan.speculation else None)
    copies = f" with {plan.engines} copies" if plan.copies else ""
    command = ("peagle", "top" if variant == VARIANT else "compare", plan.name)
    live = "Live in a terminal" if variant == VARIANT else "With confidence intervals"
    text = (
        f"# {plan.name}{'' if variant == VARIANT else f', {variant}'}\n"
        f"{portable_pair(plan.pair)} on {plan.instance_count} x {plan.instance_type}{copies}, "
        f"{speculation}, {cost}. {live}: `{shlex.join(command)}`"
    )
    place = {"x": 0, "y": y, "width": 24, "height": _HEADING}
    return {"type": "text", **place, "properties": {"markdown": text}}


def _placed(widgets: list[dict[str, Any]], y: int) -> list[dict[str, Any]]:
    per_row = 24 // _WIDTH
    return [
        {
            **widget,
            "x": index % per_row * _WIDTH,
            "y": y + index // per_row * _HEIGHT,
            "width": _WIDTH,
            "height": _HEIGHT,
        }
        for index, widget in enumerate(widgets)
    ]


@dataclass(frozen=True)
class _Charts:
    """The charts of one variant of a plan's endpoint, or of the copies on it."""

    plan: Plan
    variant: str

    def all(self) -> list[dict[str, Any]]:
        plan = self.plan
        concurrent = f"ConcurrentRequestsPer{'Copy' if plan.copies else 'Model'}"
        ttft = ("p50", "p90", "p99")
        return [
            self._chart("Requests per minute", [
                self._metric("Invocations", "Sum", "requests"),
                self._metric("Invocation4XXErrors", "Sum", "4xx"),
                self._metric("Invocation5XXErrors", "Sum", "5xx"),
            ]),
            self._chart("Time to first token (ms)", [
                *(self._metric("FirstChunkLatency", stat, stat, hidden=True) for stat in ttft),
                *([{"expression": f"{stat} / 1000", "label": stat}] for stat in ttft),
            ]),
            self._chart(f"Requests in progress per {self._engine}", [
                self._metric(concurrent, "Average", "mean"),
                self._metric(concurrent, "Maximum", "highest"),
            ]),
            self._query("Inter-token latency (ms)", _LOAD,
                        "1000 * sum(running) / sum(tokens) as itl by bin(1m)",
                        " | filter running > 0 and tokens > 0"),
            self._query("KV cache in use (%)", _LOAD,
                        "avg(kv) as mean, max(kv) as highest by bin(1m)"),
            self._query("Output tokens per second", _LOAD,
                        f"sum(tokens) * {log_interval(plan.environment):g} / 60 as tokens "
                        "by bin(1m)"),
            *self._acceptance(),
            *self._costs(),
        ]  # fmt: skip

    @property
    def _engine(self) -> str:
        """What writes statistics to a stream of the log of its own."""
        return "copy" if self.plan.copies else "instance"

    def _metric(
        self, name: str, stat: str, label: str, hidden: bool = False
    ) -> list[str | dict[str, Any]]:
        options: dict[str, Any] = {"stat": stat, "label": label}
        pairs = metric_dimensions(self.plan.name, self.plan.copies is not None, self.variant)
        if hidden:  # an expression uses it by its id
            options |= {"id": label, "visible": False}
        return [METRIC_NAMESPACE, name, *(word for pair in pairs.items() for word in pair), options]

    def _chart(self, title: str, metrics: list[Any]) -> dict[str, Any]:
        properties = {
            "title": title,
            "region": self.plan.region,
            "view": "timeSeries",
            "period": 60,
            "metrics": metrics,
            "yAxis": {"left": {"min": 0}},
        }
        return {"type": "metric", "properties": properties}

    def _query(self, title: str, lines: str, stats: str, more: str = "") -> dict[str, Any]:
        stream_filter = "" if self.plan.copies else f' | filter @logStream like "{self.variant}/"'
        query = f"SOURCE '{log_of(self.plan)}' | {lines}{stream_filter}{more} | stats {stats}"
        properties = {
            "title": title, "region": self.plan.region, "view": "timeSeries", "query": query,
        }  # fmt: skip
        return {"type": "log", "properties": properties}

    def _acceptance(self) -> list[dict[str, Any]]:
        speculation = self.plan.speculation
        if speculation is None:
            return []
        floor = speculation.acceptance_floor
        title = "Acceptance length" + (f" (floor {floor:g})" if floor is not None else "")
        stats = f"1 + {speculation.k} * sum(accepted) / sum(drafted) as length by bin(1m)"
        return [self._query(title, _DRAFTS, stats, " | filter drafted > 0")]

    def _costs(self) -> list[dict[str, Any]]:
        """Per hour, of all instances or copies: SageMaker counts each request as 1, and as 1
        divided by their number. Per token, of those whose log has tokens: a query of the log has
        no metrics."""
        plan = self.plan
        if plan.price_per_hour_usd is None:
            return []
        each = round(plan.price_per_hour_usd / plan.engines, 6)
        per = f"InvocationsPer{'Copy' if plan.copies else 'Instance'}"
        tokens = f"(sum(tokens) * {log_interval(plan.environment):g})"
        share = _BIN_SECONDS / 3600
        return [
            self._chart("USD per hour, in minutes with requests", [
                self._metric("Invocations", "Sum", "requests", hidden=True),
                self._metric(per, "Sum", "each", hidden=True),
                [{"expression": f"{each:g} * requests / each", "label": "usd"}],
            ]),
            self._query(f"USD per million output tokens, each {self._engine} at work", _LOAD,
                        f"count_distinct(@logStream) * {each:g} * {share:.6g} * 1000000 / {tokens} "
                        "as usd by bin(5m)",
                        " | filter tokens > 0"),
        ]  # fmt: skip


def has_dashboard(plan: Plan) -> bool:
    """Whether the plan has a dashboard."""
    return plan.observe is not None and plan.observe.dashboard


def keeps_log(plan: Plan) -> bool:
    """Whether the plan sets how long the log is kept; then it exists before the endpoint."""
    return plan.observe is not None and plan.observe.log_retention_days is not None


def log_retention_days(plan: Plan) -> int | None:
    """How long the endpoint's log is kept; ``None`` where the plan does not say."""
    return plan.observe.log_retention_days if plan.observe else None


def dashboard_text(plan: Plan) -> str:
    """The dashboard's body as PutDashboard takes it."""
    return json.dumps(dashboard_body(plan), ensure_ascii=False)
