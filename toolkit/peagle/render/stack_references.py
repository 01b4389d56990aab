"""References of a stack's template to its parameters, and the conditions on them.

A plan is rendered under the name ``NAME``. Every text that contains it becomes a reference to the
parameter ``EndpointName``, so that names of alarms, logs and roles follow the endpoint's.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.planning.runtime import DEFAULT_PREFIX, own_name
from peagle.render.dashboard import keeps_log
from peagle.render.limit import ends_after
from peagle.render.stack_offers import scalable
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
