"""How an update moves the requests to its new engines, while alarms watch it.

    all at once   all new engines -> all requests -> wait -> end the old engines
    canary        all new engines -> a part of the requests -> wait -> all -> wait -> end the old
    linear        the same in equal parts
    rolling       a batch of new engines -> end as many old ones -> wait -> the next batch

Without alarms, nothing can happen in the waits, and the sandbox leaves them out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.sandbox import alarms
from peagle.sandbox.fleet import Fleet, OnChosen
from peagle.sandbox.instance import LaunchFailed

_POLL_SECONDS = 0.1
_LIMITS = {"RollingUpdatePolicy": (5, 50), "CANARY": (0, 50), "LINEAR": (10, 50)}
"""Policy or type -> the least and the largest step in percent of the instances."""


class AlarmsFired(Exception):
    """Alarms undo the update; the message is the endpoint's FailureReason, in our words."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            "The deployment was rolled back because of CloudWatch alarms in the ALARM state: "
            f"{', '.join(names)}."
        )


@dataclass(frozen=True)
class Stage:
    """Where an update stands: the share of requests for the new engines, and then the wait."""

    share: float
    wait_seconds: float


Report = Callable[[str, float], None]
"""Takes the stage, such as ``Baking``, and the share of requests for the new engines."""


@dataclass(frozen=True)
class StagedUpdate:
    """A DeploymentConfig with alarms, for an update of ``total`` instances."""

    region: str
    config: Mapping[str, Any]
    total: int
    is_ended: Callable[[], bool]

    @property
    def is_rolling(self) -> bool:
        return "RollingUpdatePolicy" in self.config

    def shift(self, report: Report) -> None:
        """Move the requests to the new engines, all of which run. Raises AlarmsFired."""
        for step in self._steps():
            report("ActivatingTraffic", step.share)
            self._wait(step, report)

    def roll(self, old: Fleet, new: Fleet, on_chosen: OnChosen, report: Report) -> None:
        """Replace the engines in batches; ``new`` has none yet. Raises AlarmsFired and
        LaunchFailed."""
        policy = self.config["RollingUpdatePolicy"]
        batch = step_size(policy["MaximumBatchSize"], self.total)
        before = {variant: old.count(variant) for variant in old.variants}
        steps, share = math.ceil(self.total / batch), 0.0
        for number in range(1, steps + 1):
            report("Updating", share)
            share = min(1.0, number * batch / self.total)
            for spec in new.specs:
                new.resize(spec.variant, math.ceil(share * spec.count), on_chosen)
            report("ActivatingTraffic", share)
            for variant, count in before.items():
                old.resize(variant, math.floor((1 - share) * count), on_chosen)
            self._wait(Stage(share, policy["WaitIntervalInSeconds"]), report)

    def _steps(self) -> Iterator[Stage]:
        policy = self.config.get("BlueGreenUpdatePolicy", {})
        traffic = policy.get("TrafficRoutingConfiguration", {"Type": "ALL_AT_ONCE"})
        wait, last = traffic.get("WaitIntervalInSeconds", 0), policy.get("TerminationWaitInSeconds")
        size = traffic.get("CanarySize") or traffic.get("LinearStepSize")
        if size:
            step = step_size(size, self.total)
            count = 2 if traffic["Type"] == "CANARY" else math.ceil(self.total / step)
            for number in range(1, count):
                yield Stage(min(1.0, number * step / self.total), wait)
        yield Stage(1.0, last or 0)

    def _wait(self, step: Stage, report: Report) -> None:
        names = alarm_names(self.config)
        report("Baking", step.share)
        end = time.monotonic() + alarms.real_seconds(step.wait_seconds)
        while True:
            if self.is_ended():
                raise LaunchFailed("The endpoint was removed.")
            if fired := alarms.in_alarm(self.region, names):
                raise AlarmsFired(fired)
            if time.monotonic() >= end:
                return
            time.sleep(_POLL_SECONDS)


def alarm_names(config: Mapping[str, Any] | None) -> list[str]:
    """The alarms of a DeploymentConfig."""
    found = ((config or {}).get("AutoRollbackConfiguration") or {}).get("Alarms") or []
    return [one["AlarmName"] for one in found]


def step_size(size: Mapping[str, Any], total: int) -> int:
    """A CapacitySize as a number of instances, or copies."""
    if size["Type"] != "CAPACITY_PERCENT":
        return min(int(size["Value"]), total)
    return max(1, math.ceil(int(size["Value"]) * total / 100))


def problem(
    config: Mapping[str, Any] | None,
    region: str,
    total: int,
    counted: str = "variant's total instance count",
) -> str:
    """Why SageMaker rejects the DeploymentConfig of an update, in our words; "" for nothing.
    ``counted`` names the ``total`` that steps are a part of."""
    given = config or {}
    if len({"BlueGreenUpdatePolicy", "RollingUpdatePolicy"} & given.keys()) > 1:
        return "Only one update policy should be used in the deployment configuration."
    if unknown := alarms.unknown_alarms(region, alarm_names(config)):
        return f"The following CloudWatch alarms do not exist: {', '.join(unknown)}."
    if "RollingUpdatePolicy" in given:
        kind, size = "RollingUpdatePolicy", given["RollingUpdatePolicy"]["MaximumBatchSize"]
    else:
        policy = given.get("BlueGreenUpdatePolicy") or {}
        traffic = policy.get("TrafficRoutingConfiguration") or {}
        kind = traffic.get("Type", "")
        size = traffic.get("CanarySize") or traffic.get("LinearStepSize")
        if kind in _LIMITS and size is None:
            return f"A traffic routing configuration of type {kind} requires the size of its steps."
    if kind not in _LIMITS:
        return ""
    least, most = _LIMITS[kind]
    share = 100 * int(size["Value"]) / total
    share = float(size["Value"]) if size["Type"] == "CAPACITY_PERCENT" else share
    if least <= share <= most:
        return ""
    return (
        f"The batch size of {kind} must be between {least}% and {most}% of the {counted}, which is "
        f"{total}."
    )
