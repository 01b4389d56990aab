"""What CloudWatch refuses in the body of a dashboard (its documentation, "Dashboard body structure
and syntax")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peagle_serve.json_reader import InvalidJson, read

MOST_WIDGETS = 500
MOST_METRICS = 500
"""Metrics of one widget; 2500 of all widgets."""
MOST_METRICS_OF_ALL = 2500
_COLUMNS = 24
_TALLEST = 1000
_TYPES = {
    "metric": ("region",),
    "log": ("region", "query"),
    "text": ("markdown",),
    "alarm": ("alarms",),
}
"""Type of a widget -> the properties that it needs."""
_VIEWS = ("timeSeries", "singleValue", "gauge", "bar", "pie", "table")


def is_period(seconds: Any) -> bool:
    """Whether CloudWatch has statistics of periods of ``seconds``."""
    if type(seconds) is not int or seconds < 1:
        return False
    return seconds in (1, 5, 10, 20, 30) or seconds % 60 == 0


def dashboard_problems(body: str) -> list[str]:
    """What is wrong with the body of a dashboard; empty for a valid one."""
    try:
        document = read(body, "the body")
    except InvalidJson as error:
        return [str(error)]
    widgets = document.get("widgets") if isinstance(document, dict) else None
    if not isinstance(widgets, list):
        return ["/widgets: should be a list"]
    if len(widgets) > MOST_WIDGETS:
        return [f"/widgets: has {len(widgets)} widgets; {MOST_WIDGETS} are allowed"]
    problems = [
        f"/widgets/{place}{problem}"
        for place, widget in enumerate(widgets)
        for problem in _problems_of_widget(widget)
    ]
    metrics = [] if problems else [one for one in widgets if one["type"] == "metric"]
    count = sum(len(one["properties"].get("metrics") or ()) for one in metrics)
    if count > MOST_METRICS_OF_ALL:
        problems.append(f"/widgets: have {count} metrics; {MOST_METRICS_OF_ALL} are allowed")
    return problems


def _problems_of_widget(widget: Any) -> Iterator[str]:
    if not isinstance(widget, dict) or widget.get("type") not in tuple(_TYPES):
        yield f"/type: should be one of {', '.join(_TYPES)}"
        return
    yield from _problems_of_place(widget)
    properties = widget.get("properties")
    if not isinstance(properties, dict):
        yield "/properties: should be an object"
        return
    for name in _TYPES[widget["type"]]:
        if not properties.get(name):
            yield f"/properties/{name}: is missing"
    if properties.get("view", _VIEWS[0]) not in _VIEWS:
        yield f"/properties/view: should be one of {', '.join(_VIEWS)}"
    if widget["type"] == "metric":
        yield from _problems_of_metrics(properties)


def _problems_of_place(widget: dict[str, Any]) -> Iterator[str]:
    limits = {"x": (0, _COLUMNS - 1), "width": (1, _COLUMNS), "height": (1, _TALLEST)}
    for name, (least, most) in limits.items():
        value = widget.get(name, least)
        if type(value) is not int or not least <= value <= most:
            yield f"/{name}: should be a whole number from {least} to {most}"
            return
    if widget.get("x", 0) + widget.get("width", 6) > _COLUMNS:
        yield f"/width: reaches beyond column {_COLUMNS}"


def _problems_of_metrics(properties: dict[str, Any]) -> Iterator[str]:
    metrics = properties.get("metrics")
    if not metrics and not properties.get("annotations"):
        yield "/properties/metrics: is missing"
        return
    if not isinstance(metrics, list) or len(metrics) > MOST_METRICS:
        yield f"/properties/metrics: should be a list of at most {MOST_METRICS}"
        return
    period = properties.get("period", 300)
    if type(period) is not int or (
        period not in (1, 5, 10, 20, 30) and (period < 1 or period % 60)
    ):
        yield "/properties/period: should be 1, 5, 10, 20, 30 or a multiple of 60"
    for place, metric in enumerate(metrics):
        where = f"/properties/metrics/{place}"
        if not isinstance(metric, list) or not metric:
            yield f"{where}: should be a list"
            continue
        options = metric[-1] if isinstance(metric[-1], dict) else {}
        names = metric[:-1] if options else metric
        if "expression" in options:
            if names:
                yield f"{where}: an expression has no metric"
        elif len(names) < 2 or len(names) % 2 or not all(isinstance(one, str) for one in names):
            yield f"{where}: should be a namespace, a name, and pairs of dimension and value"
