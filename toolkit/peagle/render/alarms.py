"""The alarms of a plan.

In a rollout, the time to the first token and the errors are those of the new instances: SageMaker
publishes its metrics by endpoint configuration too. The new copies of an inference component have
none of their own: their alarms watch all copies. The acceptance length comes from the log, which
all engines of the endpoint share. Names contain the endpoint's, so that an update changes its
alarms in place, and ``--observe`` and a rollout have one of each kind together.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from peagle.planning.operation import alarm_kinds
from peagle.planning.plan import AlarmKind, Plan, Speculation
from peagle.planning.runtime import own_name
from peagle.proof import MIN_DRAFTS
from peagle.render.metrics import (
    ACCEPTED,
    DRAFTED,
    METRIC_NAMESPACE,
    metric_dimensions,
    metric_namespace,
)
from peagle.render.requests import (
    DEPLOYMENT_TAG,
    deploy_command,
)
from peagle.text import json_number

PERIOD_SECONDS = 60
"""The period of all alarms; metrics of log lines have no shorter one."""

EVALUATION_PERIODS = 2

_LOAD_PERIODS = 5
"""A queue of a minute or two is a burst."""

ERROR_SHARE = 0.05
"""The share of requests with a 5xx status above which a period is bad."""

MICROSECONDS = 1e6
"""SageMaker's unit of FirstChunkLatency, in a second."""

_LONGEST_COMMAND = 850
"""What fits into a description, of at most 1,024 characters, beside its sentences."""

_SUFFIXES: dict[AlarmKind, str] = {
    "ttft": "ttft-p90",
    "errors": "5xx",
    "acceptance": "acceptance",
    "load": "load",
}


def alarm_name(endpoint: str, kind: AlarmKind) -> str:
    """Such as ``peagle-tiny-acceptance``."""
    return f"{own_name(endpoint)}-{_SUFFIXES[kind]}"


def kind_of_alarm(endpoint: str, name: str) -> AlarmKind | None:
    """What the alarm of that name watches; ``None`` for a name that is not ours."""
    return next((kind for kind in _SUFFIXES if alarm_name(endpoint, kind) == name), None)


def all_alarm_names(endpoint: str) -> tuple[str, ...]:
    """The alarms that the endpoint may have."""
    return tuple(alarm_name(endpoint, kind) for kind in _SUFFIXES)


def alarm_names(plan: Plan) -> tuple[str, ...]:
    """The alarms of the plan."""
    return tuple(alarm_name(plan.name, kind) for kind in alarm_kinds(plan))


def rollback_alarm_names(plan: Plan) -> tuple[str, ...]:
    """The alarms that undo an update; none without a rollout."""
    kinds = plan.rollout.alarms if plan.rollout else ()
    return tuple(alarm_name(plan.name, kind) for kind in kinds)


def without_speculation(plan: Plan) -> tuple[str, ...]:
    """The command that switches speculation off, and leaves the rest of the plan and the end time
    of the deployment; empty where ``deploy_command`` is."""
    options = plan.options.model_copy(
        update={**dict.fromkeys(("rollout", "ttl", "budget")), "no_limit": False}
    )
    without = dict.fromkeys(("speculation", "drafter", "rollout", "limit"))
    target_alone = plan.model_copy(update={**without, "options": options})
    words = deploy_command(target_alone)
    if words and "--no-speculation" not in words:  # the user's own target has no drafter
        words = (*words, "--no-speculation")
    if len(shlex.join(words)) <= _LONGEST_COMMAND:
        return words
    return without_speculation_of(plan.pair, plan.name, plan.region)


def without_speculation_of(pair: str, name: str, region: str) -> tuple[str, ...]:
    """The same with the defaults of a plan for what else the plan has."""
    target = pair.partition("+")[0]
    return ("peagle", "deploy", target, "--no-speculation", "--name", name, "--region", region)


def alarm_text(
    kind: AlarmKind,
    threshold: float,
    copies: bool,
    command: Sequence[str] = (),
    owner: str = "",
) -> str:
    """The description of an alarm of this kind, whose engines are ``copies`` of an inference
    component or one for each instance; ``command`` switches speculation off, in the files of the
    template that is the ``owner``, which then applies them."""
    if kind == "acceptance":
        text = f"The acceptance length is below {threshold:g}."
        then = f", then {owner}" if owner else ""
        how = shlex.join(command) or "set no_speculation: true in peagle.yaml"
        return f"{text} To switch speculation off: {how}{then}"
    if kind == "load":
        each = "copy" if copies else "instance"
        return (
            f"Each {each} has more than {threshold:g} requests at a time: as many as the engine "
            "runs; the others wait. Add instances, or plan for a higher --concurrency"
        )
    if kind == "ttft":
        return (
            f"A tenth of the streamed requests wait more than {threshold / MICROSECONDS:g} s for "
            "their first token; SageMaker measures no other requests"
        )
    return f"More than {threshold:.0%} of the requests end with a 5xx status"


_APPLY = {
    "cloudformation": "update the stack with that template",
    "cdk": "cdk deploy",
    "terraform": "terraform apply",
}
"""Format -> how its owner applies a rendered plan. No format has a parameter that switches
speculation off: variables of the container, weights and alarms change together."""


def alarms(plan: Plan, config: str, format: str = "") -> tuple[dict[str, Any], ...]:
    """The parameters of PutMetricAlarm for each alarm of the plan; ``config`` is the name of the
    endpoint configuration that the update brings. Rendered as ``format``, the alarms belong to a
    template or script: `peagle deploy` would refuse to change its endpoint."""
    tags = [{"Key": DEPLOYMENT_TAG, "Value": plan.name}, *plan.company.tag_list]
    topic = plan.observe.alarm_topic if plan.observe else None
    common = {
        "TreatMissingData": "notBreaching",
        "Tags": tags,
        **({"AlarmActions": [topic], "OKActions": [topic]} if topic else {}),
    }
    undoing = plan.rollout.alarms if plan.rollout else ()
    return tuple(
        {
            "AlarmName": alarm_name(plan.name, kind),
            "EvaluationPeriods": EVALUATION_PERIODS,
            # With a rollout, an alarm is about all instances, also in a comparison.
            **_described(plan, kind, _alarm(plan, kind, config if kind in undoing else ""), format),
            **common,
        }
        for kind in alarm_kinds(plan)
    )


def _described(plan: Plan, kind: AlarmKind, alarm: dict[str, Any], format: str) -> dict[str, Any]:
    command = without_speculation(plan) if kind == "acceptance" else ()
    if format and command:
        command = ("peagle", "render", format, *command[2:], "-o", "FOLDER", "--force")
    owner = _APPLY[format] if format else ""
    text = alarm_text(kind, alarm["Threshold"], plan.copies is not None, command, owner)
    return {"AlarmDescription": text, **alarm}


def _alarm(plan: Plan, kind: AlarmKind, config: str) -> dict[str, Any]:
    if kind == "acceptance" and plan.speculation is not None:
        return _acceptance(plan, plan.speculation)
    if kind == "load":
        return _load(plan)
    if kind == "ttft" and plan.slo is not None and plan.slo.ttft is not None:
        return {
            **_of_sagemaker(plan, "FirstChunkLatency", config),
            "ExtendedStatistic": "p90",
            "Threshold": plan.slo.ttft * MICROSECONDS,
        }
    return {
        **_of_sagemaker(plan, "Invocation5XXErrors", config),
        "Statistic": "Average",
        "Threshold": ERROR_SHARE,
    }


def _of_sagemaker(plan: Plan, metric: str, config: str) -> dict[str, Any]:
    """A metric of the instances that run the configuration; of all instances where that is empty,
    and of all copies."""
    dimensions = metric_dimensions(plan.name, plan.copies is not None)
    if config and plan.copies is None:
        dimensions["EndpointConfigName"] = config
    return {
        "Namespace": METRIC_NAMESPACE,
        "MetricName": metric,
        "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
        "Period": PERIOD_SECONDS,
        "DatapointsToAlarm": EVALUATION_PERIODS,
        "ComparisonOperator": "GreaterThanThreshold",
    }


def _load(plan: Plan) -> dict[str, Any]:
    """More requests at a time than the engine runs: the others wait for a place in its batch and
    its KV cache."""
    return {
        **_of_sagemaker(plan, f"ConcurrentRequestsPer{'Copy' if plan.copies else 'Model'}", ""),
        "Statistic": "Average",
        "Threshold": running_limit(plan),
        "EvaluationPeriods": _LOAD_PERIODS,
        "DatapointsToAlarm": _LOAD_PERIODS,
    }


def running_limit(plan: Plan) -> float:
    """How many requests an engine of the plan runs at a time; more wait."""
    words = plan.engine_arguments
    limits = [json_number(value) for name, value in pairwise(words) if name == "--max-num-seqs"]
    return (limits[-1] if limits else None) or plan.concurrency


def _acceptance(plan: Plan, speculation: Speculation) -> dict[str, Any]:
    """One period with enough drafts decides: their mean is as reliable as that of a proof. Fewer
    count as if all were accepted."""
    k, floor = speculation.k, speculation.acceptance_floor
    metrics = {"accepted": ACCEPTED, "drafted": DRAFTED}
    return {
        "Metrics": [
            {
                "Id": "length",
                "Expression": _length(k),
                "Label": "acceptance length",
                "ReturnData": True,
            },
            *(
                {
                    "Id": name,
                    "MetricStat": {
                        "Metric": {"Namespace": metric_namespace(plan.name), "MetricName": metric},
                        "Period": PERIOD_SECONDS,
                        "Stat": "Sum",
                    },
                    "ReturnData": False,
                }
                for name, metric in metrics.items()
            ),
        ],
        "Threshold": floor,
        "DatapointsToAlarm": 1,
        "ComparisonOperator": "LessThanThreshold",
    }


def _length(k: int) -> str:
    return f"IF(drafted >= {MIN_DRAFTS * k}, 1 + {k} * accepted / drafted, {k + 1})"


_PARAMETERS = (
    "AlarmName", "AlarmDescription", "ActionsEnabled", "OKActions", "AlarmActions", "Namespace",
    "MetricName", "Statistic", "ExtendedStatistic", "Dimensions", "Period", "EvaluationPeriods",
    "DatapointsToAlarm", "Threshold", "ComparisonOperator", "TreatMissingData", "Metrics",
)  # fmt: skip
"""Those of PutMetricAlarm that DescribeAlarms has too; tags stay."""


def following(
    alarm: Mapping[str, Any], config: str, k: int, threshold: float, text: str
) -> dict[str, Any]:
    """The parameters of PutMetricAlarm that let an alarm, as DescribeAlarms has it, watch another
    endpoint configuration and K, with this threshold and description. A ``k`` of 0 is no
    speculation: no drafts are counted then."""
    parameters = {
        name: alarm[name] for name in _PARAMETERS if alarm.get(name) not in (None, [], "")
    }
    if "Dimensions" in parameters:
        parameters["Dimensions"] = [
            {**dimension, "Value": config}
            if dimension["Name"] == "EndpointConfigName"
            else dimension
            for dimension in parameters["Dimensions"]
        ]
    parameters |= {"Threshold": threshold, "AlarmDescription": text}
    if "Metrics" in parameters and k:
        parameters["Metrics"] = [
            {**query, "Expression": _length(k)} if query.get("Expression") else query
            for query in parameters["Metrics"]
        ]
    return parameters


_SUSPENDED = "Suspended while two plans that draft are compared: both write to one log"


def suspended(alarm: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of PutMetricAlarm that keep an acceptance alarm, as DescribeAlarms has it, in
    the state OK; ``following`` ends that."""
    parameters = {
        name: alarm[name] for name in _PARAMETERS if alarm.get(name) not in (None, [], "")
    }
    parameters["AlarmDescription"] = _SUSPENDED
    parameters["Metrics"] = [
        {**query, "Expression": f"{alarm['Threshold'] + 1:g} + 0 * drafted"}
        if query.get("Expression")
        else query
        for query in parameters["Metrics"]
    ]
    return parameters
