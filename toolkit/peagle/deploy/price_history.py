"""What the instances of a deployment have cost since its endpoint was requested. Pure.

Every command that starts or ends instances records what runs costs from then on.
"""

from __future__ import annotations

from peagle.planning.options import Frozen

_HOUR = 3600


class PricePeriod(Frozen):
    """From ``since`` (epoch seconds) on, what runs costs ``usd_per_hour``; ``None``: unknown.

    ``besides_usd_per_hour`` of it is for instances that the price of the most instances, by which
    a budget is counted, does not contain: those of an update, a temporary endpoint, a comparison.
    """

    since: float
    usd_per_hour: float | None
    besides_usd_per_hour: float = 0.0


class PriceHistory(Frozen):
    """The ``periods`` of one endpoint, in their order; ``besides_usd`` is what instances besides
    have cost in those that have ended, and on other machines."""

    periods: tuple[PricePeriod, ...] = ()
    besides_usd: float = 0.0

    @property
    def last(self) -> PricePeriod | None:
        return self.periods[-1] if self.periods else None

    def then(self, now: float, usd_per_hour: float | None, besides: float = 0.0) -> PriceHistory:
        """The history with another price from ``now`` on."""
        last = self.last
        same = (usd_per_hour, besides)
        if last and (last.usd_per_hour, last.besides_usd_per_hour) == same:
            return self
        period = PricePeriod(since=now, usd_per_hour=usd_per_hour, besides_usd_per_hour=besides)
        spent = self.besides_by(now)
        return PriceHistory(periods=(*self.periods, period), besides_usd=spent)

    def cost(self, until: float) -> float | None:
        """USD for everything until then, ``None`` where a price is unknown."""
        ends = [*(one.since for one in self.periods[1:]), until]
        total = 0.0
        for period, end in zip(self.periods, ends, strict=False):  # one end more without periods
            if period.usd_per_hour is None:
                return None
            total += period.usd_per_hour * max(0.0, min(end, until) - period.since) / _HOUR
        return total

    def besides_by(self, now: float) -> float:
        """USD for the instances besides until ``now``."""
        last = self.last
        if last is None:
            return self.besides_usd
        return self.besides_usd + last.besides_usd_per_hour * max(0.0, now - last.since) / _HOUR
