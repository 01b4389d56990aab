"""``AWS::Scheduler::Schedule`` in CloudFormation stacks, which moto does not have."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from moto.core.common_models import CloudFormationModel
from moto.scheduler.exceptions import ScheduleNotFound
from moto.scheduler.models import Schedule, scheduler_backends

from peagle.sandbox.client import ACCOUNT

_KEYS = {
    "description": "Description",
    "end_date": "EndDate",
    "flexible_time_window": "FlexibleTimeWindow",
    "group_name": "GroupName",
    "kms_key_arn": "KmsKeyArn",
    "schedule_expression": "ScheduleExpression",
    "schedule_expression_timezone": "ScheduleExpressionTimezone",
    "start_date": "StartDate",
    "state": "State",
    "target": "Target",
}
"""moto's parameter -> the property."""


class ScheduleResource(CloudFormationModel):
    """The type of a schedule in a template."""

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::Scheduler::Schedule"

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str, **of: Any
    ) -> Schedule:
        made = scheduler_backends[ACCOUNT][region].create_schedule(
            **_given(resource_name, document), action_after_completion=None
        )
        vars(made)["physical_resource_id"] = made.name
        return made

    @classmethod
    def update_from_cloudformation_json(
        cls, schedule: Schedule, _: str, document: Mapping[str, Any], __: str, region: str
    ) -> Schedule:
        given = _given(schedule.name, document)
        return scheduler_backends[ACCOUNT][region].update_schedule(**given)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str
    ) -> None:
        with suppress(ScheduleNotFound):  # it may have been deleted by someone else
            scheduler_backends[ACCOUNT][region].delete_schedule(None, resource_name)


def _given(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    properties = document.get("Properties") or {}
    given = {parameter: properties.get(key) for parameter, key in _KEYS.items()}
    return {**given, "name": properties.get("Name", name)}
