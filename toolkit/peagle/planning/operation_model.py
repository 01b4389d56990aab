"""The rollout, the alarms and the observability of a plan. No decisions."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from peagle.planning.options import Frozen, RolloutKind
from peagle.text import format_duration

PROVISIONING_SECONDS = 30 * 60
"""Time for finding and starting instances, besides a plan's own two timeouts."""

AlarmKind = Literal["ttft", "errors", "acceptance", "load"]
"""What an alarm watches: the time to the first token, answers with a 5xx status, the acceptance
length, or requests that wait for a place in the engine."""

LONGEST_CAPTURE_DAYS = 36_500


class Step(Frozen):
    """The size of one step: a number of instances, or of copies, or a share of them."""

    value: int
    unit: Literal["instances", "copies", "percent"]

    @property
    def text(self) -> str:
        """``25%``, ``1 instance``, ``4 copies``."""
        if self.unit == "percent":
            return f"{self.value}%"
        if self.unit == "copies":
            return f"{self.value} {'copies' if self.value > 1 else 'copy'}"
        return f"{self.value} instance{'s' if self.value > 1 else ''}"

    @property
    def argument(self) -> str:
        """As on the command line."""
        return f"{self.value}{'%' if self.unit == 'percent' else ''}"

    def instances(self, count: int) -> int:
        """The step as a number of ``count`` instances, or copies, at least one."""
        if self.unit != "percent":
            return min(self.value, count)
        return max(1, math.ceil(self.value * count / 100))

    def percent(self, count: int) -> float:
        """The step as a share of ``count`` instances, or copies, in percent."""
        return self.value if self.unit == "percent" else 100 * self.value / count


class Rollout(Frozen):
    """How an update replaces the instances, or the copies on them, and what undoes it.

    ``step`` is a batch of ``rolling``, the first step of ``canary``, each step of ``linear``, and
    ``None`` for ``all-at-once``. After every step, and before the earlier instances end, the update
    waits for ``baking_seconds``. ``extra_instances`` run besides during an update, at
    ``extra_usd_per_hour``.
    """

    kind: RolloutKind
    step: Step | None
    baking_seconds: int
    extra_instances: int
    extra_usd_per_hour: float | None
    alarms: tuple[AlarmKind, ...]

    @property
    def text(self) -> str:
        """``rolling, 1 instance per step, baking 10 min``."""
        steps = {"rolling": " per step", "linear": " per step", "canary": " first"}
        size = f", {self.step.text}{steps[self.kind]}" if self.step else ""
        return f"{self.kind}{size}, baking {format_duration(self.baking_seconds)}"

    def at_price(self, usd_per_hour: float) -> Rollout:
        """The rollout where one instance costs so much."""
        total = round(usd_per_hour * self.extra_instances, 4)
        return self.model_copy(update={"extra_usd_per_hour": total})

    def steps(self, instance_count: int) -> int:
        """How many steps an update of so many instances, or copies, takes."""
        if self.step is None:
            return 1
        if self.kind == "canary":
            return 2
        return math.ceil(instance_count / self.step.instances(instance_count))


class Capture(Frozen):
    """Requests and answers that SageMaker copies to ``s3_uri``: ``percent`` of them, encrypted with
    ``kms_key``, or with S3's own key. S3 deletes them after ``retention_days``; ``None``: a rule of
    the bucket may."""

    s3_uri: str
    percent: int = Field(ge=1, le=100)
    kms_key: str | None = None
    retention_days: int | None = Field(default=None, ge=1)


class Observe(Frozen):
    """``dashboard``: CloudWatch gets one, and ``alarms``. ``log_retention_days``: how long the
    endpoint's log is kept, ``None`` for as long as it was. ``alarm_topic`` is the topic of SNS that
    all alarms notify, also those of a rollout."""

    dashboard: bool
    log_retention_days: int | None = None
    capture: Capture | None = None
    alarms: tuple[AlarmKind, ...] = ()
    alarm_topic: str | None = None


def observe_arguments(observe: Observe | None) -> list[str]:
    """The options of `peagle plan` that ask for this."""
    if observe is None:
        return []
    words = ["--observe"] if observe.dashboard else []
    if observe.log_retention_days is not None:
        words += ["--log-retention", str(observe.log_retention_days)]
    words += ["--alarm-topic", observe.alarm_topic] if observe.alarm_topic else []
    if observe.capture is not None:
        words += ["--capture-data", observe.capture.s3_uri]
        words += ["--capture-percent", str(observe.capture.percent)]
        key = observe.capture.kms_key
        words += ["--capture-kms-key", key] if key else []
        words += ["--capture-retention", str(observe.capture.retention_days or 0)]
    return words
