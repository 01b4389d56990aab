"""What AWS keeps of an endpoint after its deletion: the log, scaling targets, alarms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.aws.runtime import log_group

LeftoverKind = Literal["ScalableTarget", "Alarm", "LogGroup"]

_SCALING = "application-autoscaling"
_NAMESPACE = "sagemaker"


@dataclass(frozen=True)
class Leftover:
    """A resource outside of SageMaker; ``parameters`` are those of the call that removes it."""

    kind: LeftoverKind
    name: str
    parameters: dict[str, Any]

    @property
    def text(self) -> str:
        """Such as ``Alarm peagle-tiny-latency``."""
        return f"{self.kind} {self.name}"

    def document(self) -> dict[str, str]:
        """For ``--json``."""
        return {"type": self.kind, "name": self.name}


def find_leftovers(aws: Aws, name: str) -> tuple[Leftover, ...]:
    """The scaling targets, alarms and log of the endpoint, in the order of their removal.

    Raises AccessDenied when one kind may not be listed.
    """
    return (*_targets(aws, name), *_alarms(aws, name), *_log(aws, name))


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
}


def _targets(aws: Aws, name: str) -> Iterator[Leftover]:
    """Deregistering a target also deletes its policies and their alarms."""
    listed = aws.items(
        _SCALING, "describe_scalable_targets", "ScalableTargets", ServiceNamespace=_NAMESPACE
    )
    for found in listed:
        resource = found["ResourceId"]
        if resource.startswith(f"endpoint/{name}/"):
            parameters = {
                "ServiceNamespace": _NAMESPACE,
                "ResourceId": resource,
                "ScalableDimension": found["ScalableDimension"],
            }
            yield Leftover("ScalableTarget", resource, parameters)


def _alarms(aws: Aws, name: str) -> Iterator[Leftover]:
    """The alarms on metrics of the endpoint."""
    for found in aws.items("cloudwatch", "describe_alarms", "MetricAlarms"):
        dimensions = {one["Name"]: one["Value"] for one in found.get("Dimensions") or ()}
        if dimensions.get("EndpointName") == name:
            alarm = found["AlarmName"]
            yield Leftover("Alarm", alarm, {"AlarmNames": [alarm]})


def _log(aws: Aws, name: str) -> Iterator[Leftover]:
    group = log_group(name)
    for found in aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=group):
        if found["logGroupName"] == group:
            yield Leftover("LogGroup", group, {"logGroupName": group})
