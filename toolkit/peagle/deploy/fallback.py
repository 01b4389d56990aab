"""Deploy on one instance type after another, until AWS has a free instance.

A round tries the plan's own type and then its fallbacks. Each of them has a plan of its own,
checked as any plan, and removes the failed endpoint of the one before. With ``retry_seconds``,
rounds are repeated until that time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from peagle.aws.client import Clock
from peagle.aws.errors import InsufficientCapacity
from peagle.deploy.context import Observer, Progress, unobserved
from peagle.deploy.preflight import Preflight
from peagle.errors import PeagleError, Refused, UserError
from peagle.text import format_duration

PAUSE_SECONDS = 60.0
"""Between two rounds: AWS frees instances within minutes, not seconds."""

_TICK_SECONDS = 1.0
"""Between two displays of the elapsed time."""

Outcome = Literal["deployed", "no-capacity", "refused", "failed"]


@dataclass(frozen=True)
class Attempt:
    """One instance type that was tried, for how long, and its price. ``refused``: its plan or the
    account did not allow it, so that nothing was created."""

    instance_type: str
    instance_count: int
    price_per_hour_usd: float | None
    seconds: float
    outcome: Outcome
    reason: str = ""

    def document(self) -> dict[str, Any]:
        """The attempt as ``--json`` prints it."""
        return {**asdict(self), "seconds": round(self.seconds, 1)}


@dataclass(frozen=True)
class Fallback:
    """What to do when AWS has no instance of the planned type.

    ``choose`` gets the first such error and returns the other types to try, in order; it may ask.
    ``prepare`` returns the checked plan on a type, and raises Refused or UserError for one that
    cannot be deployed.
    """

    choose: Callable[[InsufficientCapacity], Sequence[str]]
    prepare: Callable[[str], Preflight]
    retry_seconds: float = 0.0


def deploy_where_possible(
    found: Preflight,
    deploy: Callable[[Preflight], object],
    fallback: Fallback,
    attempts: list[Attempt],
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Preflight:
    """Call ``deploy`` with ``found``, then with the plans on other types, until one does not raise
    InsufficientCapacity; returns the plan that is deployed.

    What is tried is added to ``attempts``, also when an error or the user ends it. Raises the last
    InsufficientCapacity, with all that was ``tried``, and at once whatever else ``deploy`` raises.
    """
    return _Rounds(deploy, fallback, attempts, observe, clock or Clock()).run(found)


@dataclass(frozen=True)
class _Rounds:
    """The parameters of ``deploy_where_possible``, all but the first plan."""

    deploy: Callable[[Preflight], object]
    fallback: Fallback
    attempts: list[Attempt]
    observe: Observer
    clock: Clock

    def run(self, found: Preflight) -> Preflight:
        """As ``deploy_where_possible``."""
        began = self.clock.now()
        types = [found.desired.plan.instance_type]
        error = self._attempt(found)
        if error is None:
            return found
        types += self.fallback.choose(error)
        left = types[1:]
        while True:
            for instance_type in left:
                prepared = self._prepared(instance_type)
                if prepared is None:
                    types.remove(instance_type)
                    continue
                again = self._attempt(prepared)
                if again is None:
                    return prepared
                error = again
            remaining = began + self.fallback.retry_seconds - self.clock.now()
            if remaining <= 0 or not types:
                error.tried = [attempt.document() for attempt in self.attempts]
                raise error
            self._pause(min(PAUSE_SECONDS, remaining), began)
            left = list(types)

    def _pause(self, seconds: float, began: float) -> None:
        """Wait, and show for how long the types have been tried since ``began``."""
        ends = self.clock.now() + seconds
        while (left := ends - self.clock.now()) > 0:
            elapsed = self.clock.now() - began
            text = f"next attempt in {left:.0f} s"
            self.observe(Progress("Waiting for capacity", elapsed, line=text))
            self.clock.sleep(min(left, _TICK_SECONDS))

    def _attempt(self, found: Preflight) -> InsufficientCapacity | None:
        """Deploy once; the error if AWS has no instance."""
        began = self.clock.now()
        try:
            self.deploy(found)
        except InsufficientCapacity as error:
            self._record(found, began, "no-capacity", error.message)
            return error
        except PeagleError as error:
            self._record(found, began, "failed", error.message)
            raise
        self._record(found, began, "deployed")
        return None

    def _prepared(self, instance_type: str) -> Preflight | None:
        """The plan on this type; ``None``, and an entry of the list, if it cannot be deployed."""
        try:
            return self.fallback.prepare(instance_type)
        except (Refused, UserError) as error:
            attempt = Attempt(instance_type, 0, None, 0.0, "refused", error.message)
            self.attempts.append(attempt)
            self.observe(Progress("Refused", line=f"{instance_type}: {error}", is_notice=True))
            return None

    def _record(self, found: Preflight, began: float, outcome: Outcome, reason: str = "") -> None:
        plan = found.desired.plan
        seconds = self.clock.now() - began
        attempt = Attempt(
            plan.instance_type, plan.instance_count, plan.price_per_hour_usd, seconds, outcome,
            reason,
        )  # fmt: skip
        self.attempts.append(attempt)
        if outcome == "no-capacity":
            line = f"{plan.instance_type}, after {format_duration(seconds)}: {reason}"
            self.observe(Progress("No capacity", line=line, is_notice=True))
