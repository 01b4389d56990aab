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
    planned: Preflight,
    deploy: Callable[[Preflight], object],
    fallback: Fallback,
    attempts: list[Attempt],
    observe: Observer = unobserved,
    clock: Clock | None = None,
) -> Preflight:
    """Call ``deploy`` with ``planned``, then with the plans on other types, until one does not
    raise InsufficientCapacity; returns the plan that is deployed.

    What is tried is added to ``attempts``, also when an error or the user ends it. Raises the last
    InsufficientCapacity, with all that was ``tried``, and at once whatever else ``deploy`` raises.
    """
    clock = clock or Clock()
    began = clock.now()

    def attempt(preflight: Preflight) -> InsufficientCapacity | None:
        plan, started = preflight.desired.plan, clock.now()

        def record(outcome: Outcome, reason: str = "") -> None:
            price, seconds = plan.price_per_hour_usd, clock.now() - started
            attempts.append(
                Attempt(plan.instance_type, plan.instance_count, price, seconds, outcome, reason)
            )

        try:
            deploy(preflight)
        except InsufficientCapacity as error:
            record("no-capacity", error.message)
            duration = format_duration(clock.now() - started)
            line = f"{plan.instance_type}, after {duration}: {error.message}"
            observe(Progress("No capacity", line=line, is_notice=True))
            return error
        except PeagleError as error:
            record("failed", error.message)
            raise
        record("deployed")
        return None

    error = attempt(planned)
    if error is None:
        return planned
    types = [planned.desired.plan.instance_type, *fallback.choose(error)]
    left = types[1:]
    while True:
        for instance_type in left:
            try:
                prepared = fallback.prepare(instance_type)
            except (Refused, UserError) as refused:
                reason = refused.message
                attempts.append(Attempt(instance_type, 0, None, 0.0, "refused", reason))
                line = f"{instance_type}: {refused}"
                observe(Progress("Refused", line=line, is_notice=True))
                types.remove(instance_type)
                continue
            again = attempt(prepared)
            if again is None:
                return prepared
            error = again
        remaining = began + fallback.retry_seconds - clock.now()
        if remaining <= 0 or not types:
            error.tried = [tried.document() for tried in attempts]
            raise error
        ends = clock.now() + min(PAUSE_SECONDS, remaining)
        while (pause := ends - clock.now()) > 0:
            text = f"next attempt in {pause:.0f} s"
            observe(Progress("Waiting for capacity", clock.now() - began, line=text))
            clock.sleep(min(pause, _TICK_SECONDS))
        left = list(types)
