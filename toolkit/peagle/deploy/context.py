"""What one command on one deployment works with: connection, record, clock, progress, waiting.

Intent is written to the record before a change, the fact after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws, Clock
from peagle.aws.runtime import Tail
from peagle.aws.sagemaker import BUSY, Endpoint
from peagle.deploy import state
from peagle.deploy.served import start_seconds
from peagle.deploy.state import Deployment, Resource, ResourceType, Revision
from peagle.errors import CloudError, Fix, PeagleError, Refused

PROVISIONING_SECONDS = 30 * 60
"""Time for finding and starting instances, on top of the plan's own two timeouts."""

_POLLS = ((120.0, 1.0), (math.inf, 5.0))
"""Seconds between two polls, each until so many seconds have passed."""

_SANDBOX_POLLS = ((10.0, 0.1), *_POLLS)

_ONE_REQUEST: tuple[ResourceType, ...] = ("Model", "EndpointConfig", "Endpoint")
"""The resources that one request creates."""


@dataclass(frozen=True)
class Progress:
    """One state of a deployment to display. ``cost_usd`` is ``None`` when the price is unknown.

    ``lasting`` marks frequent updates, of which a display may skip most.
    """

    state: str
    seconds: float = 0.0
    cost_usd: float | None = None
    line: str = ""
    lasting: bool = True


Observer = Callable[[Progress], object]


def unobserved(progress: Progress) -> None:
    """The default observer: shows nothing."""


@dataclass
class DeploymentContext:
    """One command on one deployment. ``record`` always equals the record file."""

    aws: Aws
    record: Deployment
    observe: Observer = unobserved
    clock: Clock = field(default_factory=Clock)

    def change(self, **fields: Any) -> None:
        """Change fields of the record and write it."""
        self.write(self.record.model_copy(update=fields))

    def write(self, record: Deployment) -> None:
        """Replace the record and write it."""
        state.save(record)
        self.record = record

    @contextmanager
    def creating(self, resource: Resource) -> Iterator[None]:
        """Record the resource as intended before the block, and as created after it.

        If AWS rejects the request for a new resource, the resource does not exist, and its entry
        goes. Weights are many requests, of which one may be rejected: their entry stays.
        """
        known = [r for r in self.record.of_type(resource.type) if r.name == resource.name]
        keys = {*resource.keys, *(key for earlier in known for key in earlier.keys)}
        made = any(earlier.made for earlier in known)
        intended = resource.model_copy(update={"made": made, "keys": tuple(sorted(keys))})
        self.write(self.record.with_resource(intended))
        try:
            yield
        except PeagleError as error:
            if not known and resource.type in _ONE_REQUEST and _changed_nothing(error):
                self.write(self.record.without(resource.type, resource.name))
                if resource.type == "Endpoint":
                    self.change(billing_since=None)
            raise
        self.write(self.record.with_resource(intended.model_copy(update={"made": True})))

    def say(self, state: str, line: str = "", lasting: bool = False) -> None:
        """Report progress to the observer."""
        self.observe(Progress(state, line=line, lasting=lasting))

    def say_bytes(self, state: str, done: int, total: int) -> None:
        """Report how many bytes are transferred."""
        self.say(state, f"{done / 1e6:.1f} of {total / 1e6:.1f} MB", lasting=done < total)

    def tail(self, since: float) -> Tail:
        """The endpoint's log from ``since`` (epoch seconds) on."""
        return Tail(self.aws, self.record.name, since)

    def wait_while_busy(
        self, revision: Revision, since: float, tail: Tail | None = None, purpose: str = ""
    ) -> Endpoint | None:
        """The endpoint once SageMaker has finished changing it; ``None`` when it is gone.

        ``since`` is when the change began, in epoch seconds; ``purpose`` is displayed instead of
        SageMaker's status. Costs are shown at the price of ``revision``. Raises CloudError after
        ``limit_seconds(revision)``.

        boto3's own waiter takes a rolled-back update for a success, polls
        ``UpdateRollbackFailed`` for an hour, and reports no progress.
        """
        started = self.clock.now()
        while True:
            live = sagemaker.describe(self.aws, self.record.name)
            if live is None or live.status not in BUSY:
                return live
            if tail:
                tail.drain()
            seconds = max(0.0, self.clock.now() - since)
            price = revision.served.usd_per_hour
            cost = None if price is None else price * seconds / 3600
            line = tail.last_line if tail else ""
            self.observe(Progress(purpose or live.status, seconds, cost, line))
            waited = self.clock.now() - started
            if waited > limit_seconds(revision):
                raise CloudError(
                    f"{live.name} is still {live.status} after {waited / 60:.0f} minutes",
                    Fix(
                        "run the command again to continue waiting, or remove the endpoint",
                        ("peagle", "destroy", live.name),
                    ),
                    code="endpoint-timeout",
                )
            polls = _POLLS if self.aws.is_amazon else _SANDBOX_POLLS
            self.clock.sleep(next(pause for until, pause in polls if waited < until))


def limit_seconds(revision: Revision) -> float:
    """How long the endpoint of a revision may take to start, in seconds."""
    return start_seconds(revision.served) + PROVISIONING_SECONDS


def _changed_nothing(error: PeagleError) -> bool:
    """Whether a request was not sent, or AWS rejected it."""
    return isinstance(error, Refused) or (isinstance(error, CloudError) and error.rejected)
