"""The scaling, the rollout, the end, the alarms and the observability of a plan. No decisions."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from peagle.options import Frozen, RolloutKind
from peagle.text import bounds_text, format_duration

PROVISIONING_SECONDS = 30 * 60
"""Time for finding and starting instances, besides a plan's own two timeouts."""

AlarmKind = Literal["ttft", "errors", "acceptance", "load"]
"""What an alarm watches: the time to the first token, answers with a 5xx status, the acceptance
length, or requests that wait for a place in the engine."""


class Scaling(Frozen):
    """SageMaker keeps ``min_instances`` to ``max_instances``, so that each has about
    ``target_concurrency`` requests at a time (waiting ones included).

    After it ended an instance it ends no other for ``scale_in_cooldown_seconds``; after it started
    some, it starts no more for ``scale_out_cooldown_seconds``.

    With an inference component, ``min_copies`` to ``max_copies`` of the engine are kept instead,
    each with that many requests, and the instances follow them. No copies, and no instances, run
    while there are no requests where ``min_copies`` is 0; the first request then waits about
    ``wake_up_seconds``.
    """

    min_instances: int = Field(ge=0)
    max_instances: int = Field(ge=1)
    target_concurrency: float = Field(gt=0)
    scale_in_cooldown_seconds: int = Field(ge=0)
    scale_out_cooldown_seconds: int = Field(ge=0)
    min_copies: int | None = Field(default=None, ge=0)
    max_copies: int | None = Field(default=None, ge=1)
    wake_up_seconds: int | None = Field(default=None, ge=0)

    @property
    def scales_copies(self) -> bool:
        """Whether it scales the copies of the engine, and not the instances."""
        return self.max_copies is not None

    @property
    def scales_to_zero(self) -> bool:
        """Whether nothing runs while there are no requests."""
        return self.min_copies == 0

    @property
    def minimum(self) -> int:
        """The fewest copies, or instances without an inference component."""
        return self.min_instances if self.min_copies is None else self.min_copies

    @property
    def maximum(self) -> int:
        """The most copies, or instances without an inference component."""
        return self.max_instances if self.max_copies is None else self.max_copies

    @property
    def text(self) -> str:
        """``1 to 4 instances, target 8 requests at a time each``."""
        return bounds_text(self.minimum, self.maximum, self.target_concurrency, self.scales_copies)

    def prices(self, usd_per_hour: float | None, instance_count: int) -> tuple[float, float] | None:
        """USD per hour at the minimum and at the maximum, from the price of ``instance_count``
        instances; ``None`` if that is unknown."""
        if usd_per_hour is None:
            return None
        price = usd_per_hour / instance_count
        return round(price * self.min_instances, 4), round(price * self.max_instances, 4)


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


class Limit(Frozen):
    """The end of a deployment: ``ttl_seconds`` after the deploy that sets it, or when the endpoint
    has cost ``budget_usd`` since it was requested, whichever is earlier. With neither, an earlier
    end time is removed."""

    ttl_seconds: int | None = None
    budget_usd: float | None = None

    @property
    def removes(self) -> bool:
        """Whether the deployment has no end time from then on."""
        return self.ttl_seconds is None and self.budget_usd is None


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
