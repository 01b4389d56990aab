"""The alarms of a plan, and the metrics that they and the dashboard read.

SageMaker's metrics are the endpoint's variant's, or those of the inference component with the
copies of its model. In a rollout, the time to the first token and the errors are those of the new
instances: SageMaker publishes its metrics by endpoint configuration too. The new copies of an
inference component have none of their own: their alarms watch all copies.

The acceptance length comes from the log, which all engines of the endpoint share: filters read
vLLM's lines of statistics on AWS's image, and the fields of our image's lines. A filter does not
see the name of a log stream, so it counts the engines of all variants together.

Names of alarms contain the endpoint's, so that an update changes its alarms in place, and
``--observe`` and a rollout have one of each kind together.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from peagle.planning.operation import alarm_kinds
from peagle.planning.plan import AlarmKind, Plan
from peagle.planning.runtime import DEFAULT_PREFIX, prefixed_name
from peagle.proof import MIN_DRAFTS
from peagle.protocol import log_group
from peagle.render.requests import DEPLOYMENT_TAG, VARIANT
from peagle.text import json_number
from peagle_serve.logs import ACCEPTED_FIELD, DRAFTED_FIELD

METRIC_NAMESPACE = "AWS/SageMaker"

COMPONENT_DIMENSION = "InferenceComponentName"
"""The only dimension of a component's metrics of requests."""

_ACCEPTED, _DRAFTED = "AcceptedTokens", "DraftedTokens"
"""The metrics of the filters, in the namespace of the endpoint."""

_LINE = (
    "(APIServer pid=1) INFO 11-22 08:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance "
    "length: 2.50, Accepted throughput: 1.00 tokens/s, Drafted throughput: 2.00 tokens/s, "
    "Accepted: 327 tokens, Drafted: 500 tokens,"
)
"""vLLM's line of statistics up to its last count; its numbers of words do not change."""


def log_of(plan: Plan) -> str:
    """The log group of the plan's engines."""
    return log_group(plan.name, copies=plan.copies is not None)


def metric_dimensions(endpoint: str, copies: bool, variant: str = VARIANT) -> dict[str, str]:
    """The dimensions of the metrics of requests, of an endpoint with ``copies``, or of one of its
    variants."""
    if copies:
        return {COMPONENT_DIMENSION: endpoint}
    return {"EndpointName": endpoint, "VariantName": variant}


def metric_namespace(endpoint: str) -> str:
    """The namespace of the endpoint's metrics from its log."""
    return f"Peagle/{endpoint}"


def metric_filters(plan: Plan) -> tuple[dict[str, Any], ...]:
    """The parameters of PutMetricFilter for the counts that the acceptance alarm needs: accepted
    and drafted tokens in the endpoint's log, as the plan's image writes it."""
    if "acceptance" not in alarm_kinds(plan):
        return ()
    if plan.proof.source == "log":
        # A line by its words: the two labels must be there, and the words after them are counts.
        words, fields = _LINE.split(), []
        for number, (before, word) in enumerate(zip(["", *words], words, strict=False)):
            name = f"w{number}"
            if word in ("SpecDecoding", "Accepted:", "Drafted:"):
                name += f'="{word}"'
            elif before in ("Accepted:", "Drafted:"):
                name = before.rstrip(":").lower()
            fields.append(name)
        pattern = f"[{', '.join(fields)}, ...]"
        filters = {_ACCEPTED: (pattern, "$accepted"), _DRAFTED: (pattern, "$drafted")}
    else:
        named = {_ACCEPTED: ACCEPTED_FIELD, _DRAFTED: DRAFTED_FIELD}
        filters = {name: (f"{{ $.{field} = * }}", f"$.{field}") for name, field in named.items()}
    return tuple(
        {
            "logGroupName": log_of(plan),
            "filterName": f"{DEFAULT_PREFIX}{metric}",
            "filterPattern": pattern,
            "metricTransformations": [
                {
                    "metricName": metric,
                    "metricNamespace": metric_namespace(plan.name),
                    "metricValue": value,
                }
            ],
        }
        for metric, (pattern, value) in filters.items()
    )


PERIOD_SECONDS = 60
"""The period of all alarms; metrics of log lines have no shorter one."""

_EVALUATION_PERIODS = 2

_LOAD_PERIODS = 5
"""A queue of a minute or two is a burst."""

_MICROSECONDS = 1e6
"""SageMaker's unit of FirstChunkLatency, in a second."""

SUFFIXES: dict[AlarmKind, str] = {
    "ttft": "ttft-p90",
    "errors": "5xx",
    "acceptance": "acceptance",
    "load": "load",
}


def alarm_name(endpoint: str, kind: AlarmKind) -> str:
    """Such as ``peagle-tiny-acceptance``."""
    return f"{prefixed_name(endpoint)}-{SUFFIXES[kind]}"


def rollback_alarm_names(plan: Plan) -> tuple[str, ...]:
    """The alarms that undo an update; none without a rollout."""
    kinds = plan.rollout.alarms if plan.rollout else ()
    return tuple(alarm_name(plan.name, kind) for kind in kinds)


def _alarm_text(kind: AlarmKind, threshold: float, copies: bool) -> str:
    """The description of an alarm."""
    if kind == "acceptance":
        return (
            f"The acceptance length is below {threshold:g}. To switch speculation off, plan and "
            "apply again with --no-speculation"
        )
    if kind == "load":
        each = "copy" if copies else "instance"
        return (
            f"Each {each} has more than {threshold:g} requests at a time: as many as the engine "
            "runs; the others wait. Add instances, or plan for a higher --concurrency"
        )
    if kind == "ttft":
        return (
            f"A tenth of the streamed requests wait more than {threshold / _MICROSECONDS:g} s for "
            "their first token; SageMaker measures no other requests"
        )
    return f"More than {threshold:.0%} of the requests end with a 5xx status"


def alarms(plan: Plan, config: str) -> tuple[dict[str, Any], ...]:
    """The parameters of PutMetricAlarm for each alarm of the plan; ``config`` is the name of the
    endpoint configuration that the update brings."""
    topic = plan.observe.alarm_topic if plan.observe else None
    undoing = plan.rollout.alarms if plan.rollout else ()
    made = []
    for kind in alarm_kinds(plan):
        # Without a rollout, an alarm is about all instances.
        alarm = _alarm(plan, kind, config if kind in undoing else "")
        made.append(
            {
                "AlarmName": alarm_name(plan.name, kind),
                "EvaluationPeriods": _EVALUATION_PERIODS,
                "AlarmDescription": _alarm_text(kind, alarm["Threshold"], plan.copies is not None),
                **alarm,
                "TreatMissingData": "notBreaching",
                "Tags": [{"Key": DEPLOYMENT_TAG, "Value": plan.name}, *plan.company.tag_list],
                **({"AlarmActions": [topic], "OKActions": [topic]} if topic else {}),
            }
        )
    return tuple(made)


def _alarm(plan: Plan, kind: AlarmKind, config: str) -> dict[str, Any]:
    """What the alarm watches: a metric of the instances that run the configuration; of all
    instances where that is empty, and of all copies."""
    if kind == "acceptance" and plan.speculation is not None:
        return _acceptance_alarm(plan.name, plan.speculation.k, plan.speculation.acceptance_floor)
    dimensions = metric_dimensions(plan.name, plan.copies is not None)
    if config and plan.copies is None:
        dimensions["EndpointConfigName"] = config
    watched: dict[str, Any] = {
        "Namespace": METRIC_NAMESPACE,
        "MetricName": "Invocation5XXErrors",
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "Period": PERIOD_SECONDS,
        "DatapointsToAlarm": _EVALUATION_PERIODS,
        "ComparisonOperator": "GreaterThanThreshold",
    }
    if kind == "ttft" and plan.slo is not None and plan.slo.ttft is not None:
        return watched | {
            "MetricName": "FirstChunkLatency",
            "ExtendedStatistic": "p90",
            "Threshold": plan.slo.ttft * _MICROSECONDS,
        }
    if kind == "load":
        # More requests at a time than the engine runs wait for a place in batch and KV cache.
        words = plan.engine_arguments
        limits = [json_number(value) for name, value in pairwise(words) if name == "--max-num-seqs"]
        return watched | {
            "MetricName": f"ConcurrentRequestsPer{'Copy' if plan.copies else 'Model'}",
            "Statistic": "Average",
            "Threshold": (limits[-1] if limits else None) or plan.concurrency,
            "EvaluationPeriods": _LOAD_PERIODS,
            "DatapointsToAlarm": _LOAD_PERIODS,
        }
    return watched | {"Statistic": "Average", "Threshold": 0.05}  # 5 % of the requests


def _acceptance_alarm(endpoint: str, k: int, floor: float | None) -> dict[str, Any]:
    """One period with enough drafts decides: their mean is as reliable as that of a proof. Fewer
    count as if all were accepted."""
    counts = [
        {
            "Id": name,
            "MetricStat": {
                "Metric": {"Namespace": metric_namespace(endpoint), "MetricName": metric},
                "Period": PERIOD_SECONDS,
                "Stat": "Sum",
            },
            "ReturnData": False,
        }
        for name, metric in (("accepted", _ACCEPTED), ("drafted", _DRAFTED))
    ]
    length = {
        "Id": "length",
        "Expression": f"IF(drafted >= {MIN_DRAFTS * k}, 1 + {k} * accepted / drafted, {k + 1})",
        "Label": "acceptance length",
        "ReturnData": True,
    }
    return {
        "Metrics": [length, *counts],
        "Threshold": floor,
        "DatapointsToAlarm": 1,
        "ComparisonOperator": "LessThanThreshold",
    }
