"""Application Auto Scaling in the sandbox: it really starts and ends engines.

``decide`` is target tracking as its documentation describes it: more instances or copies once the
average concurrency of one exceeds the target for 30 s, fewer once it is below 90 % of it for 15
minutes. The autoscaler reads that metric from ``metrics``, where ``traffic`` publishes it. A step
policy acts while its alarm is in the state ALARM. ``set_speed`` lets these times pass faster;
``scalable_targets`` finds what is registered.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from moto.core.exceptions import ServiceException

from peagle.sandbox.metrics import STORE, Metric, Store

_PERIOD_SECONDS, _SHORTEST_PERIOD = 10.0, 2.0
_OUT_SECONDS, _IN_SECONDS, _IN_SHARE = 30.0, 900.0, 0.9
COOLDOWN_SECONDS = 300
"""Application Auto Scaling's default of all cooldowns for instances and copies."""
_TICK_SECONDS = 0.5
_MOST_ACTIVITIES = 100


@dataclass(frozen=True)
class Tracking:
    """A target tracking policy on the concurrency of an instance; cooldowns are seconds."""

    target: float
    scale_in_cooldown: float = COOLDOWN_SECONDS
    scale_out_cooldown: float = COOLDOWN_SECONDS
    scales_in: bool = True


@dataclass(frozen=True)
class FiredStep:
    """What a step policy asks for whose alarm is in the state ALARM: ``count`` instances or copies,
    ``cooldown`` seconds after the last change."""

    count: int
    cooldown: float = COOLDOWN_SECONDS


@dataclass(frozen=True)
class ScaledTarget:
    """A variant, or an inference component, with a scalable target. ``load`` is the metric of one
    instance or copy. ``policy`` is ``None`` for one that the sandbox does not follow; ``set_count``
    starts or ends engines and may raise ServiceException."""

    region: str
    resource: str
    dimension: str
    load: Metric
    minimum: int
    maximum: int
    policy: Tracking | None
    count: int
    is_busy: bool
    set_count: Callable[[int], object]
    step: FiredStep | None = None

    @property
    def counted(self) -> str:
        """What is counted, as Application Auto Scaling writes it."""
        return "copy" if "inference-component" in self.dimension else "instance"


def decide(
    target: ScaledTarget, recent: Sequence[float], long: Sequence[float], quiet: float
) -> int:
    """How many instances or copies the target should have.

    ``recent`` and ``long`` are the average requests at a time of one in each period of the last
    30 s, and of the last 15 minutes; empty where they do not reach back that far. ``quiet`` is how
    many seconds ago the number changed last.
    """
    count, policy, step = target.count, target.policy, target.step
    if not target.minimum <= count <= target.maximum:
        return min(max(count, target.minimum), target.maximum)
    if step is not None and quiet >= step.cooldown:
        return min(max(step.count, target.minimum), target.maximum)
    if policy is None:
        return count
    if recent and min(recent) > policy.target and quiet >= policy.scale_out_cooldown:
        mean = sum(recent) / len(recent)
        return min(math.ceil(count * mean / policy.target), target.maximum)
    below = long and max(long) < _IN_SHARE * policy.target
    if below and policy.scales_in and quiet >= policy.scale_in_cooldown:
        needed = math.ceil(count * max(long) / policy.target)
        return min(count, max(needed, target.minimum))
    return count


class Autoscaler:
    """Follows the policies of all targets. ``speed`` is how many seconds pass in one."""

    def __init__(self, store: Store) -> None:
        self.speed = 1.0
        self._store = store
        self._changed: dict[tuple[str, str], float] = {}
        self._shrunk: set[tuple[str, str]] = set()
        self._activities: deque[tuple[str, dict[str, Any]]] = deque(maxlen=_MOST_ACTIVITIES)

    def follow(self, target: ScaledTarget, now: float) -> None:
        """Change the number of instances if its policy asks for that. ``now`` is epoch seconds, as
        those of the store's points."""
        key = (target.region, target.resource)
        if target.is_busy:  # only what is measured with the present number counts
            self._changed[key] = now
            return
        since = self._changed.get(key, -math.inf)
        series = [self._series(target, seconds, since, now) for seconds in _WINDOWS]
        quiet = (now - since) * self.speed
        if target.step and key in self._shrunk:  # a start after an end need not wait
            target = replace(target, step=replace(target.step, cooldown=0.0))
        desired = decide(target, series[0], series[1], quiet)
        if desired == target.count:
            return
        self._changed[key] = now
        (self._shrunk.add if desired < target.count else self._shrunk.discard)(key)
        reason = ""
        try:
            target.set_count(desired)
        except ServiceException as error:
            reason = error.message
        self._record(target, desired, now, reason)

    def activities(self, region: str, resource: str | None) -> list[dict[str, Any]]:
        """What it did, the latest first, as DescribeScalingActivities has it."""
        return [
            document
            for place, document in reversed(self._activities)
            if place == region and resource in (None, document["ResourceId"])
        ]

    def clear(self) -> None:
        """Forget everything, and let time pass as usual."""
        self.speed = 1.0
        self._changed.clear()
        self._shrunk.clear()
        self._activities.clear()

    def _series(
        self, target: ScaledTarget, seconds: float, since: float, now: float
    ) -> list[float]:
        """The averages of all complete periods of the last ``seconds``; empty if one lacks data or
        began before ``since``."""
        period = max(_SHORTEST_PERIOD, _PERIOD_SECONDS / self.speed)
        count = max(1, math.ceil(seconds / self.speed / period))
        end = now // period * period
        start = end - count * period
        found = {}
        if start > since:
            found = self._store.series(target.load, "Average", period, start, end)
        return list(found.values()) if len(found) == count else []

    def _record(self, target: ScaledTarget, desired: int, now: float, reason: str) -> None:
        at = datetime.fromtimestamp(now, UTC).isoformat()
        document = {
            "ActivityId": f"{len(self._activities)}-{now:.3f}",
            "ServiceNamespace": "sagemaker",
            "ResourceId": target.resource,
            "ScalableDimension": target.dimension,
            "Description": f"Setting desired {target.counted} count to {desired}.",
            "Cause": f"{target.minimum} to {target.maximum} allowed; {target.count} ran",
            "StartTime": at,
            "EndTime": at,
            "StatusCode": "Failed" if reason else "Successful",
        }
        if reason:
            document["StatusMessage"] = f"Failed to set desired {target.counted} count: {reason}"
        self._activities.append((target.region, document))


_WINDOWS = (_OUT_SECONDS, _IN_SECONDS)

AUTOSCALER = Autoscaler(STORE)


def set_speed(speed: float) -> None:
    """Let the times of scaling pass ``speed`` times as fast. Raises ValueError."""
    if not 1 <= speed <= 1000:  # false for NaN
        raise ValueError(f"a speed is a number from 1 to 1000, not {speed}")
    AUTOSCALER.speed = speed


def start_autoscaling(targets: Callable[[], Iterable[ScaledTarget]]) -> None:
    """Follow the policies of all ``targets`` for as long as the process runs."""

    def follow() -> None:
        while True:
            time.sleep(_TICK_SECONDS)
            try:
                for target in targets():
                    AUTOSCALER.follow(target, time.time())
            except Exception:  # a bug here must not end the scaling of every endpoint
                traceback.print_exc()

    threading.Thread(target=follow, name="autoscaling", daemon=True).start()
