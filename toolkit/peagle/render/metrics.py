"""How CloudWatch names what a deployment publishes, and the filters that count its log's tokens.

The metrics are the endpoint's variant's, or those of the inference component with the copies of its
model. The filters read vLLM's lines of statistics on AWS's image, and the fields of our image's
lines. A filter does not see the name of a log stream, so it counts the engines of all variants
together.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.operation import alarm_kinds
from peagle.planning.plan import Plan
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.protocol import log_group
from peagle.render.requests import VARIANT
from peagle_serve.logs import ACCEPTED_FIELD, DRAFTED_FIELD

METRIC_NAMESPACE = "AWS/SageMaker"
"""The namespace of SageMaker's metrics of requests."""

COMPONENT_DIMENSION = "InferenceComponentName"
"""The only dimension of a component's metrics of requests."""

ACCEPTED, DRAFTED = "AcceptedTokens", "DraftedTokens"
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
    """The parameters of PutMetricFilter for the counts that the acceptance alarm needs."""
    if "acceptance" not in alarm_kinds(plan):
        return ()
    return acceptance_filters(plan)


def acceptance_filters(plan: Plan) -> tuple[dict[str, Any], ...]:
    """The filters that count accepted and drafted tokens in the endpoint's log, as the plan's image
    writes it."""
    if plan.proof.source == "log":
        pattern = _stock_pattern()
        filters = {ACCEPTED: (pattern, "$accepted"), DRAFTED: (pattern, "$drafted")}
    else:
        fields = {ACCEPTED: ACCEPTED_FIELD, DRAFTED: DRAFTED_FIELD}
        filters = {name: (f"{{ $.{field} = * }}", f"$.{field}") for name, field in fields.items()}
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


def _stock_pattern() -> str:
    """CloudWatch's pattern of a line by its words: the two labels must be there, and the words
    after them are the counts."""
    words = _LINE.split()
    fields = []
    for number, word in enumerate(words):
        before = words[number - 1] if number else ""
        if word in ("SpecDecoding", "Accepted:", "Drafted:"):
            fields.append(f'w{number}="{word}"')
        elif before in ("Accepted:", "Drafted:"):
            fields.append(before.rstrip(":").lower())
        else:
            fields.append(f"w{number}")
    return f"[{', '.join(fields)}, ...]"
