"""EventBridge Scheduler that calls its targets: moto keeps schedules, and never fires them.

    CreateSchedule, UpdateSchedule   reject a role that the scheduler may not assume, as AWS does
    at(...)                          one-time schedules fire once they are due, then go if they say
                                     so; those of other kinds stay and never fire
    aws-sdk:sagemaker:deleteEndpoint and ...:deleteInferenceComponent
                                     the only targets

What SageMaker refuses (a busy endpoint, or one with copies) is tried again each second for the
maximum age of the schedule's retry policy; an error of another kind is not. ``CLOCK`` may be moved
forward, so that tests need not wait.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from botocore import xform_name
from moto.core.common_models import CloudFormationModel
from moto.core.exceptions import ServiceException
from moto.scheduler import urls
from moto.scheduler.exceptions import ScheduleNotFound, ValidationException
from moto.scheduler.models import EventBridgeSchedulerBackend, Schedule, scheduler_backends

from peagle.sandbox.account import find_role, may_be_assumed
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoints import RefusedForNowError
from peagle.sandbox.sagemaker import backend_of
from peagle_serve.json_reader import read

_POLL_SECONDS = 1.0
_LONGEST_RETRY = 86_400
"""Seconds in which a schedule without a RetryPolicy is tried again (EventBridge Scheduler)."""


class ScheduleClock:
    """The scheduler's time in epoch seconds: that of the machine, moved forward until a reset."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def advance(self, seconds: float) -> float:
        """Move it forward; how far it is ahead now. Raises ValueError for another direction."""
        if not 0 <= seconds <= 10 * 366 * 86400:
            raise ValueError("the clock moves forward, by ten years at most")
        self.ahead += seconds
        return self.ahead


CLOCK = ScheduleClock()

_LOCK = threading.Lock()
_fired: set[tuple[str, str, float]] = set()
"""What has fired and stays: ARN, expression, and when it was changed."""


class SchedulerBackend(EventBridgeSchedulerBackend):
    """moto's scheduler with AWS's check of the role."""

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return urls

    def create_schedule(self, *arguments: Any, **parameters: Any) -> Schedule:
        _check(parameters, self.region_name)
        return super().create_schedule(*arguments, **parameters)

    def update_schedule(self, *arguments: Any, **parameters: Any) -> Schedule:
        _check(parameters, self.region_name)
        return super().update_schedule(*arguments, **parameters)


def _check(parameters: Mapping[str, Any], region: str) -> None:
    """Raise AWS's error for a schedule that could not be fired."""
    expression = str(parameters["schedule_expression"])
    zone = parameters.get("schedule_expression_timezone")
    if expression.startswith("at(") and due_time(expression, zone) is None:
        raise ValidationException(f"Invalid Schedule Expression {expression}.")
    role = find_role(parameters["target"]["RoleArn"], region)
    policy = role.assume_role_policy_document if role else ""
    if not may_be_assumed(policy, "scheduler.amazonaws.com"):
        raise ValidationException(
            "The execution role you provide must allow AWS EventBridge Scheduler to assume the "
            "role."
        )


def due_time(expression: str, timezone: str | None) -> float | None:
    """When a one-time schedule is due, in epoch seconds; ``None`` for any other."""
    try:
        moment = datetime.strptime(expression, "at(%Y-%m-%dT%H:%M:%S)")
        return moment.replace(tzinfo=ZoneInfo(timezone or "UTC")).astimezone(UTC).timestamp()
    except (ValueError, OSError, KeyError):
        return None


def fire_due(now: float) -> list[str]:
    """Call the target of every schedule that is due, in epoch seconds; the names of those that are
    done, with or without success."""
    done = []
    with _LOCK:
        for _, region, of_region in list(scheduler_backends.iter_backends()):
            backend = cast(EventBridgeSchedulerBackend, of_region)
            groups = list(backend.schedule_groups.values())
            schedules = [
                schedule for group in groups for schedule in list(group.schedules.values())
            ]
            for schedule in schedules:
                due = due_time(schedule.schedule_expression, schedule.schedule_expression_timezone)
                mark = (schedule.arn, schedule.schedule_expression, schedule.last_modified_date)
                if due is None or due > now or mark in _fired or schedule.state != "ENABLED":
                    continue
                if not _fire(schedule, region, now - due):
                    continue
                _fired.add(mark)
                if schedule.action_after_completion == "DELETE":
                    backend.delete_schedule(schedule.group_name, schedule.name)
                done.append(schedule.name)
    return done


def _fire(schedule: Schedule, region: str, late_seconds: float) -> bool:
    """Call the target; false for one that is to be tried again."""
    target = schedule.target
    try:
        operation = str(target["Arn"]).rpartition(":scheduler:::aws-sdk:sagemaker:")[2]
        parameters = read(target.get("Input") or "{}", "the target's input")
        if operation == "deleteEndpoint":
            backend_of(region).begin_deleting(parameters["EndpointName"])
        elif operation == "deleteInferenceComponent":
            backend_of(region).begin_deleting_component(parameters["InferenceComponentName"])
        else:
            raise ValueError(f"the sandbox does not call {target['Arn']}")
    except (ServiceException, ValueError, LookupError, TypeError) as error:
        oldest = (target.get("RetryPolicy") or {}).get("MaximumEventAgeInSeconds", _LONGEST_RETRY)
        if isinstance(error, RefusedForNowError) and late_seconds < oldest:
            return False
        print(f"schedule {schedule.name}: {error}", flush=True)
    return True


class ScheduleResource(CloudFormationModel):
    """``AWS::Scheduler::Schedule``, which moto lacks."""

    @staticmethod
    def cloudformation_name_type() -> str:
        return "Name"

    @staticmethod
    def cloudformation_type() -> str:
        return "AWS::Scheduler::Schedule"

    @classmethod
    def create_from_cloudformation_json(  # type: ignore[override]
        cls, name: str, document: Mapping[str, Any], _: str, region: str, **of: Any
    ) -> Schedule:
        schedule = scheduler_backends[ACCOUNT][region].create_schedule(
            **_schedule_parameters(name, document), action_after_completion=None
        )
        vars(schedule).update(physical_resource_id=schedule.name, is_created=lambda: True)
        return schedule

    @classmethod
    def update_from_cloudformation_json(
        cls, schedule: Schedule, _: str, document: Mapping[str, Any], __: str, region: str
    ) -> Schedule:
        parameters = _schedule_parameters(schedule.name, document)
        return scheduler_backends[ACCOUNT][region].update_schedule(**parameters)

    @classmethod
    def delete_from_cloudformation_json(
        cls, resource_name: str, document: Mapping[str, Any], _: str, region: str
    ) -> None:
        with suppress(ScheduleNotFound):  # it may have been deleted by someone else
            scheduler_backends[ACCOUNT][region].delete_schedule(None, resource_name)


def _schedule_parameters(name: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """moto's parameters of a schedule."""
    properties = document.get("Properties") or {}
    names = (
        *("Description", "EndDate", "FlexibleTimeWindow", "GroupName", "KmsKeyArn"),
        *("ScheduleExpression", "ScheduleExpressionTimezone", "StartDate", "State", "Target"),
    )
    parameters = {xform_name(key): properties.get(key) for key in names}
    return {**parameters, "name": properties.get("Name", name)}


def install() -> None:
    """Let this process's moto use this backend. Call it before the first request."""
    scheduler_backends.backend = SchedulerBackend


def start() -> None:
    """Fire due schedules in the background from now on."""

    def fire() -> None:
        while True:
            try:
                fire_due(CLOCK.now())
            except Exception:
                traceback.print_exc()
            time.sleep(_POLL_SECONDS)

    threading.Thread(target=fire, name="scheduler", daemon=True).start()
