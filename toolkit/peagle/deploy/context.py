"""What one command on one deployment works with: connection, record, clock, progress.

Intent is written to the record before a change, the fact after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from peagle.aws.client import Aws, Clock
from peagle.aws.sagemaker import KINDS
from peagle.deploy import records
from peagle.deploy.state import Deployment, Failure, Resource
from peagle.errors import CloudError, PeagleError, Refused


@dataclass(frozen=True)
class Progress:
    """One state of a deployment to display. ``cost_usd`` is ``None`` when the price is unknown.

    ``lasting`` marks frequent updates, of which a display may skip most; ``is_logging``: the
    engine has begun to log; ``is_notice``: the line stays on the screen.
    """

    state: str
    seconds: float = 0.0
    cost_usd: float | None = None
    line: str = ""
    lasting: bool = True
    is_logging: bool = False
    is_notice: bool = False


Observer = Callable[[Progress], object]


_BY_ONE_REQUEST = (*KINDS, "Alarm", "MetricFilter", "LifecycleRule")
"""The types of resources that one request creates."""


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
        records.save(record)
        self.record = record

    @contextmanager
    def creating(self, resource: Resource) -> Iterator[None]:
        """Record the resource as intended before the block, and as created after it.

        If AWS rejects the request for a new resource, the resource does not exist, and its entry
        goes. Weights are many requests, of which one may be rejected: their entry stays.
        """
        entries = [r for r in self.record.of_type(resource.type) if r.name == resource.name]
        keys = {*resource.keys, *(key for earlier in entries for key in earlier.keys)}
        made = any(earlier.made for earlier in entries)
        intended = resource.model_copy(update={"made": made, "keys": tuple(sorted(keys))})
        self.write(self.record.with_resource(intended))
        try:
            yield
        except PeagleError as error:
            # The request was not sent, or AWS rejected it.
            is_rejected = isinstance(error, Refused) or (
                isinstance(error, CloudError) and error.rejected
            )
            if not entries and resource.type in _BY_ONE_REQUEST and is_rejected:
                self.write(self.record.without(resource.type, resource.name))
                if resource.type == "Endpoint":
                    self.change(billing_since=None)
            raise
        self.write(self.record.with_resource(intended.model_copy(update={"made": True})))

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record the error that ends the block."""
        try:
            yield
        except PeagleError as error:
            self.change(failure=Failure.of(error))
            raise

    def say(self, state: str, line: str = "", lasting: bool = False) -> None:
        """Report progress to the observer."""
        self.observe(Progress(state, line=line, lasting=lasting))

    def notice(self, text: str) -> None:
        """Report something that the user has to know, although the work goes on."""
        self.observe(Progress(self.record.name, line=text, lasting=False, is_notice=True))

    def say_bytes(self, state: str, done: int, total: int) -> None:
        """Report how many bytes are transferred."""
        self.say(state, f"{done / 1e6:.1f} of {total / 1e6:.1f} MB", lasting=done < total)
