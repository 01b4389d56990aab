"""Waiting for an endpoint, with something to see meanwhile.

boto3's own waiter is not used: it takes a rolled-back update for a success, spins for an hour on
``UpdateRollbackFailed``, and shows nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from peagle.aws.client import Aws
from peagle.aws.logs import Tail
from peagle.aws.sagemaker import BUSY, Endpoint, describe
from peagle.errors import CloudError

PROVISIONING_SECONDS = 30 * 60
"""Room for finding and starting machines, on top of the plan's own two timeouts."""

_EAGER_SECONDS = 120
_EAGER_POLL, _PATIENT_POLL = 1.0, 5.0


@dataclass(frozen=True)
class Progress:
    """What can be shown. ``cost_usd`` is ``None`` when the price is not known.

    ``lasting``: it may be told very often, so most of it need not be shown.
    """

    state: str
    seconds: float = 0.0
    cost_usd: float | None = None
    line: str = ""
    lasting: bool = True


Observer = Callable[[Progress], object]


class Clock:
    """The time, and a pause; tests bring their own."""

    def now(self) -> float:
        """Epoch seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)


@dataclass(frozen=True)
class Watch:
    """What waiting needs: whom to ask, whom to tell, and when to give up."""

    aws: Aws
    name: str
    observe: Observer
    clock: Clock
    limit_seconds: float
    usd_per_hour: float | None = None

    def until_settled(
        self, since: float, tail: Tail | None = None, purpose: str = ""
    ) -> Endpoint | None:
        """Wait while SageMaker works on the endpoint; ``None`` when it is gone.

        ``since`` is when the work began; ``purpose`` is told instead of SageMaker's state. Raises
        CloudError after ``limit_seconds``.
        """
        started = self.clock.now()
        while True:
            live = describe(self.aws, self.name)
            if live is None or live.status not in BUSY:
                return live
            self.observe(self._progress(purpose or live.status, since, tail))
            self._pause(started, live.status)

    def _progress(self, state: str, since: float, tail: Tail | None) -> Progress:
        if tail:
            tail.drain()
        seconds = max(0.0, self.clock.now() - since)
        cost = None if self.usd_per_hour is None else self.usd_per_hour * seconds / 3600
        return Progress(state, seconds, cost, tail.last_line if tail else "")

    def _pause(self, started: float, state: str) -> None:
        waited = self.clock.now() - started
        if waited > self.limit_seconds:
            raise CloudError(
                f"{self.name} is still {state} after {waited / 60:.0f} minutes",
                f"go on waiting with the same command, or give up: peagle destroy {self.name}",
            )
        self.clock.sleep(_EAGER_POLL if waited < _EAGER_SECONDS else _PATIENT_POLL)
