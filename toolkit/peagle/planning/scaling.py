"""Automatic scaling of a plan: its bounds and its target. Pure; ``choose_scaling`` decides them."""

from __future__ import annotations

from pydantic import Field

from peagle.planning.options import Frozen
from peagle.text import bounds_text, format_usd


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
        one = usd_per_hour / instance_count
        return round(one * self.min_instances, 4), round(one * self.max_instances, 4)

    def priced_text(self, usd_per_hour: float | None, instance_count: int) -> str:
        """``text``, with the price per hour at both bounds, and how long it takes to wake up."""
        prices = self.prices(usd_per_hour, instance_count)
        text = self.text
        if prices is not None:
            text += f"; {format_usd(prices[0])} to {format_usd(prices[1])} per hour"
        if self.wake_up_seconds is not None:
            text += f"; wakes up in about {self.wake_up_seconds // 60} min"
        return text
