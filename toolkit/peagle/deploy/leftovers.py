"""What AWS keeps of an endpoint after its deletion: the log, scaling targets, alarms, dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from peagle.aws import cloudwatch
from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.protocol import log_group
from peagle.render.alarms import alarm_name
from peagle.render.dashboard import dashboard_name
from peagle.render.metrics import COMPONENT_DIMENSION
from peagle.render.resources import copies_id, wake_alarm_name

LeftoverKind = Literal["ScalableTarget", "Alarm", "LogGroup", "Dashboard"]

_SCALING = "application-autoscaling"
_NAMESPACE = "sagemaker"


@dataclass(frozen=True)
class Leftover:
    """A resource outside of SageMaker; ``parameters`` are those of the call that removes it.
    ``goes_with_endpoint``: a scaling target, and the alarms of its policies, since an endpoint that
    scales is not deleted."""

    kind: LeftoverKind
    name: str
    parameters: dict[str, Any]
    goes_with_endpoint: bool = False

    @property
    def text(self) -> str:
        """Such as ``Alarm peagle-tiny-latency``."""
        return f"{self.kind} {self.name}"

    def document(self) -> dict[str, str]:
        """For ``--json``."""
        return {"type": self.kind, "name": self.name}


def find_leftovers(aws: Aws, name: str) -> tuple[Leftover, ...]:
    """The scaling targets, alarms, log and dashboard of the endpoint, in the order of removal.

    Raises AccessDenied when one kind may not be listed.
    """
    return (*_targets(aws, name), *_alarms(aws, name), *_log(aws, name), *_dashboard(aws, name))


def remove_leftover(aws: Aws, leftover: Leftover) -> None:
    """Remove it; ignores what no longer exists. Raises CloudError."""
    service, operation = _REMOVAL[leftover.kind]
    try:
        aws.call(service, operation, **leftover.parameters)
    except Missing:
        return


_REMOVAL: dict[LeftoverKind, tuple[str, str]] = {
    "ScalableTarget": (_SCALING, "deregister_scalable_target"),
    "Alarm": ("cloudwatch", "delete_alarms"),
    "LogGroup": ("logs", "delete_log_group"),
    "Dashboard": ("cloudwatch", "delete_dashboards"),
}


def _targets(aws: Aws, name: str) -> Iterator[Leftover]:
    """Deregistering a target also deletes its policies and their alarms."""
    listed = aws.items(
        _SCALING, "describe_scalable_targets", "ScalableTargets", ServiceNamespace=_NAMESPACE
    )
    for found in listed:
        resource = found["ResourceId"]
        if resource.startswith(f"endpoint/{name}/") or resource == copies_id(name):
            parameters = {
                "ServiceNamespace": _NAMESPACE,
                "ResourceId": resource,
                "ScalableDimension": found["ScalableDimension"],
            }
            yield Leftover("ScalableTarget", resource, parameters, goes_with_endpoint=True)


def _alarms(aws: Aws, name: str) -> Iterator[Leftover]:
    """The alarms on metrics of the endpoint, and the one on its log, which has no dimension."""
    on_log, wakes = alarm_name(name, "acceptance"), wake_alarm_name(name)
    for found in aws.items("cloudwatch", "describe_alarms", "MetricAlarms"):
        dimensions = {one["Name"]: one["Value"] for one in found.get("Dimensions") or ()}
        watched = (dimensions.get("EndpointName"), dimensions.get(COMPONENT_DIMENSION))
        if name in watched or found["AlarmName"] == on_log:
            alarm = found["AlarmName"]
            scales = alarm == wakes or alarm.startswith("TargetTracking-")
            yield Leftover("Alarm", alarm, {"AlarmNames": [alarm]}, goes_with_endpoint=scales)


def _log(aws: Aws, name: str) -> Iterator[Leftover]:
    for group in (log_group(name), log_group(name, copies=True)):
        there = aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=group)
        if any(found["logGroupName"] == group for found in there):
            yield Leftover("LogGroup", group, {"logGroupName": group})


def _dashboard(aws: Aws, name: str) -> Iterator[Leftover]:
    called = dashboard_name(name, aws.region)
    text = cloudwatch.dashboard_text(aws, called)
    if text is not None and f'"{name}"' in text:
        yield Leftover("Dashboard", called, {"DashboardNames": [called]})
