"""A stack's references to its parameters, conditions on them, and settings that one can switch on.

A plan is rendered under the name ``NAME``. Every text that contains it becomes a reference to the
parameter ``EndpointName``, so that names of alarms, logs and roles follow the endpoint's.

A stack also offers scaling, alarms and a dashboard that its plan lacks. They are switched off; a
parameter of the template switches them on, without another plan.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.choose_scaling import SCALE_OUT_SECONDS, SHORTEST_SCALE_IN_SECONDS
from peagle.planning.limit import ends_after
from peagle.planning.operation_model import AlarmKind, Observe, Scaling
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.planning.runtime import DEFAULT_PREFIX, own_name
from peagle.render.alarms import running_limit
from peagle.render.dashboard import keeps_log
from peagle.s3uri import S3Uri

NAME = "PeagleEndpointName"
"""Stands for the endpoint's name."""

CONFIG_NAME = "PeagleEndpointConfigName"
"""Stands for the name of the endpoint configuration, which CloudFormation generates."""

NO_VALUE: dict[str, Any] = {"Ref": "AWS::NoValue"}

SCALES, OBSERVES, NOTIFIES = "ScalingOn", "ObservabilityOn", "AlarmsNotify"
SEVERAL, ENCRYPTS_LOG = "SeveralInstances", "LogHasKey"
_PREFIXED, _PLANNED_NAME = "NameHasPrefix", "NameIsPlanned"

_OWN_NAME = {
    "Fn::If": [
        _PREFIXED,
        {"Ref": "EndpointName"},
        {"Fn::Sub": f"{DEFAULT_PREFIX}${{EndpointName}}"},
    ]
}
"""The beginning of the names of alarms and dashboards, which policies allow."""

_STACK_ID = {"Fn::Select": [2, {"Fn::Split": ["/", {"Ref": "AWS::StackId"}]}]}
"""The UUID in the stack's ARN."""


def with_references(value: Any) -> Any:
    """``value`` with references in place of ``NAME``, ``CONFIG_NAME`` and the plan's
    placeholders."""
    if isinstance(value, list):
        return [with_references(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {"Fn::Sub"} and isinstance(value["Fn::Sub"], str):
            return _substituted(value["Fn::Sub"])
        return {key: with_references(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    whole = {
        NAME: {"Ref": "EndpointName"},
        CONFIG_NAME: {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]},
        EXECUTION_ROLE: {"Ref": "ExecutionRoleArn"},
    }
    if value in whole:
        return whole[value]
    if value.startswith(str(S3Uri(MODEL_BUCKET))):
        return {"Fn::Sub": value}
    return _substituted(value.replace("${", "${!")) if NAME in value else value


def _substituted(text: str) -> dict[str, Any]:
    own = own_name(NAME)
    if own in text:
        own_parts = text.replace(own, "${OwnName}").replace(NAME, "${EndpointName}")
        return {"Fn::Sub": [own_parts, {"OwnName": _OWN_NAME}]}
    return {"Fn::Sub": text.replace(NAME, "${EndpointName}")}


def either(condition: str, value: Any, other: Any = NO_VALUE) -> dict[str, Any]:
    """``value`` where the condition holds, else ``other``."""
    return {"Fn::If": [condition, value, other]}


def schedule_name(planned: str, end: str = "") -> dict[str, Any]:
    """The planned name of a schedule; under another name of the endpoint one with the stack's ID,
    since a template can neither shorten nor hash a name to the 64 characters that are allowed."""
    other = {"Fn::Sub": [f"peagle-ends-${{StackUuid}}{end}", {"StackUuid": _STACK_ID}]}
    return either(_PLANNED_NAME, planned, other)


def conditions(plan: Plan) -> dict[str, Any]:
    """The conditions that the template of the plan uses."""
    beginning = {"Fn::Select": [0, {"Fn::Split": [DEFAULT_PREFIX, {"Ref": "EndpointName"}]}]}
    found: dict[str, Any] = {
        _PREFIXED: _equals(beginning, ""),
        OBSERVES: _equals({"Ref": "Observability"}, "true"),
        NOTIFIES: _not_equals({"Ref": "AlarmTopicArn"}, ""),
    }
    if scalable(plan):
        found[SCALES] = _equals({"Ref": "Scaling"}, "true")
    if plan.copies is None:
        many = _not_equals({"Ref": "InitialInstanceCount"}, 1)
        found[SEVERAL] = {"Fn::Or": [many, {"Condition": SCALES}]}
    if keeps_log(plan):
        found[ENCRYPTS_LOG] = _not_equals({"Ref": "LogKmsKeyArn"}, "")
    if ends_after(plan) is not None:
        found[_PLANNED_NAME] = _equals({"Ref": "EndpointName"}, plan.name)
    return found


def _equals(value: Any, other: Any) -> dict[str, Any]:
    return {"Fn::Equals": [value, other]}


def _not_equals(value: Any, other: Any) -> dict[str, Any]:
    return {"Fn::Not": [_equals(value, other)]}


def scalable(plan: Plan) -> bool:
    """Whether a stack of the plan can scale: not copies, unless the plan scales them."""
    return plan.copies is None or plan.scaling is not None


def offered_scaling(plan: Plan) -> Scaling | None:
    """The plan's scaling, or the one that its stack offers: up to twice the instances, each with
    the requests that its engine runs at a time; ``None`` where none is offered."""
    if plan.scaling is not None or not scalable(plan):
        return plan.scaling
    return Scaling(
        min_instances=plan.instance_count,
        max_instances=2 * plan.instance_count,
        target_concurrency=running_limit(plan),
        scale_in_cooldown_seconds=max(SHORTEST_SCALE_IN_SECONDS, plan.startup_timeout_seconds),
        scale_out_cooldown_seconds=SCALE_OUT_SECONDS,
    )


def with_observability(plan: Plan) -> Plan:
    """The plan with its dashboard and alarms; without any, with those that it has limits for."""
    if plan.observe is not None and plan.observe.dashboard:
        return plan
    kinds: list[AlarmKind] = ["errors", "load"]
    if plan.slo is not None and plan.slo.ttft is not None:
        kinds.insert(0, "ttft")
    if plan.speculation is not None and plan.speculation.acceptance_floor is not None:
        kinds.insert(-1, "acceptance")
    observe = plan.observe or Observe(dashboard=False)
    offered = observe.model_copy(update={"dashboard": True, "alarms": tuple(kinds)})
    return plan.model_copy(update={"observe": offered})
