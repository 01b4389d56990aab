"""EventBridge Scheduler that calls its targets: moto keeps schedules, and never fires them.

    CreateSchedule, UpdateSchedule   reject a role that the scheduler may not assume, as AWS does
    at(...)                          one-time schedules fire once they are due, then go if they say
                                     so; those of other kinds stay and never fire
    aws-sdk:sagemaker:deleteEndpoint and ...:deleteInferenceComponent
                                     the only targets; the role must allow them

What SageMaker refuses (a busy endpoint, or one with copies) is tried again each second for the
maximum age of the schedule's retry policy; an error of another kind is not. ``CLOCK`` may be moved
forward, so that tests need not wait.
"""

from __future__ import annotations

import fnmatch
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from moto.core.exceptions import ServiceException
from moto.scheduler import urls
from moto.scheduler.exceptions import ValidationException
from moto.scheduler.models import EventBridgeSchedulerBackend, Schedule, scheduler_backends

from peagle.sandbox.prerequisites import find_role, may_be_assumed
from peagle.sandbox.resources import RefusedForNowError
from peagle.sandbox.sagemaker import backend_of
from peagle_serve.json_reader import read

SERVICE = "scheduler.amazonaws.com"
POLL_SECONDS = 1.0

_AT = "at(%Y-%m-%dT%H:%M:%S)"
_LONGEST_RETRY = 86_400
"""Seconds in which a schedule without a RetryPolicy is tried again (EventBridge Scheduler)."""
_TARGET = ":scheduler:::aws-sdk:sagemaker:"


class ScheduleClock:
    """The scheduler's time in epoch seconds: that of the machine, moved forward until a reset."""

    def __init__(self) -> None:
        self._ahead = 0.0

    def now(self) -> float:
        return time.time() + self._ahead

    def advance(self, seconds: float) -> float:
        """Move it forward; how far it is ahead now. Raises ValueError for another direction."""
        if not 0 <= seconds <= 10 * 366 * 86400:
            raise ValueError("the clock moves forward, by ten years at most")
        self._ahead += seconds
        return self._ahead

    def reset(self) -> None:
        """Forget how far it was moved."""
        self._ahead = 0.0


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

    def create_schedule(self, *given: Any, **more: Any) -> Schedule:
        _check(more, self.region_name)
        return super().create_schedule(*given, **more)

    def update_schedule(self, *given: Any, **more: Any) -> Schedule:
        _check(more, self.region_name)
        return super().update_schedule(*given, **more)


def _check(given: Mapping[str, Any], region: str) -> None:
    """Raise AWS's error for a schedule that could not be fired."""
    expression = str(given["schedule_expression"])
    if expression.startswith("at(") and _due(expression, given) is None:
        raise ValidationException(f"Invalid Schedule Expression {expression}.")
    role = find_role(given["target"]["RoleArn"], region)
    if role is None or not may_be_assumed(role.assume_role_policy_document, SERVICE):
        raise ValidationException(
            "The execution role you provide must allow AWS EventBridge Scheduler to assume the "
            "role."
        )


def _due(expression: str, given: Mapping[str, Any]) -> float | None:
    """When a one-time schedule is due, in epoch seconds; ``None`` for any other."""
    try:
        zone = ZoneInfo(given.get("schedule_expression_timezone") or "UTC")
        return datetime.strptime(expression, _AT).replace(tzinfo=zone).astimezone(UTC).timestamp()
    except (ValueError, OSError, KeyError):
        return None


@dataclass(frozen=True)
class _Due:
    region: str
    backend: EventBridgeSchedulerBackend
    schedule: Schedule
    since: float


def _all_due(now: float) -> Iterator[_Due]:
    for _, region, found in list(scheduler_backends.iter_backends()):
        backend = cast(EventBridgeSchedulerBackend, found)
        for group in list(backend.schedule_groups.values()):
            for schedule in list(group.schedules.values()):
                zone = {"schedule_expression_timezone": schedule.schedule_expression_timezone}
                since = _due(schedule.schedule_expression, zone)
                if since is None or since > now or _mark(schedule) in _fired:
                    continue
                if schedule.state == "ENABLED":
                    yield _Due(region, backend, schedule, since)


def _mark(schedule: Schedule) -> tuple[str, str, float]:
    return schedule.arn, schedule.schedule_expression, schedule.last_modified_date


def fire_due(now: float) -> list[str]:
    """Call the target of every schedule that is due, in epoch seconds; the names of those that are
    done, with or without success."""
    with _LOCK:
        return list(_fire_due(now))


def _fire_due(now: float) -> Iterator[str]:
    for due in _all_due(now):
        schedule = due.schedule
        try:
            _call(schedule.target, due.region)
        except ServiceException as error:
            retry = schedule.target.get("RetryPolicy") or {}
            oldest = retry.get("MaximumEventAgeInSeconds", _LONGEST_RETRY)
            if isinstance(error, RefusedForNowError) and now - due.since < oldest:
                continue
            print(f"schedule {schedule.name}: {error}", flush=True)
        except (ValueError, LookupError, TypeError) as error:
            print(f"schedule {schedule.name}: {error}", flush=True)
        _fired.add(_mark(schedule))
        if schedule.action_after_completion == "DELETE":
            due.backend.delete_schedule(schedule.group_name, schedule.name)
        yield schedule.name


def _call(target: Mapping[str, Any], region: str) -> None:
    """Call the target. Raises ValueError for one that the sandbox does not have, or that the role
    does not allow, and what SageMaker raises."""
    given = read(target.get("Input") or "{}", "the target's input")
    backend = backend_of(region)
    operation = str(target["Arn"]).rpartition(_TARGET)[2]
    if operation == "deleteEndpoint":
        found: Any = backend.find_endpoint(given["EndpointName"])
        delete: Callable[[str], object] = backend.begin_deleting
    elif operation == "deleteInferenceComponent":
        found = backend.components.find(given["InferenceComponentName"])
        delete = backend.components.begin_deleting
    else:
        raise ValueError(f"the sandbox does not call {target['Arn']}")
    tags = {tag["Key"]: tag["Value"] for tag in found.tags}
    role, action = find_role(target["RoleArn"], region), f"sagemaker:D{operation[1:]}"
    if role is None or not _allows(role, action, found.arn, tags):
        raise ValueError(
            f"{target['RoleArn']} is not authorized to perform: {action} on {found.arn}"
        )
    delete(*given.values())


def _allows(role: Any, action: str, resource: str, tags: Mapping[str, str]) -> bool:
    """Whether an inline policy of the role allows it; of conditions, those about tags count."""
    for policy in role.policies.values():
        document = (
            read(policy, "the policy") if isinstance(policy, str) else policy
        )  # one of a stack
        for one in document["Statement"]:
            equal = (one.get("Condition") or {}).get("StringEquals") or {}
            if (
                one["Effect"] == "Allow"
                and one["Action"] == action
                and fnmatch.fnmatchcase(resource, one["Resource"])
                and all(tags.get(key.partition("/")[2]) == value for key, value in equal.items())
            ):
                return True
    return False


def install() -> None:
    """Let this process's moto use this backend. Call it before the first request."""
    scheduler_backends.backend = SchedulerBackend


def start() -> None:
    """Fire due schedules in the background from now on."""
    threading.Thread(target=_run, name="scheduler", daemon=True).start()


def _run() -> None:
    while True:
        try:
            fire_due(CLOCK.now())
        except Exception:
            traceback.print_exc()
        time.sleep(POLL_SECONDS)
