"""Changing the account while writing down what was changed: intent before, fact after."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.logs import Tail
from peagle.deploy import state as records
from peagle.deploy.state import Deployment, Generation, Resource
from peagle.deploy.watch import Clock, Observer, Progress, Watch

Explain = Callable[[Sequence[str]], tuple[str, str]]
"""Finds, in an engine's log, the line that says why it ended, and what mends it ("" if unknown)."""


@dataclass
class Work:
    """One command's work on one deployment. ``record`` is always what the file says."""

    aws: Aws
    record: Deployment
    observe: Observer = field(default=lambda progress: None)
    explain: Explain = field(default=lambda lines: ("", ""))
    clock: Clock = field(default_factory=Clock)

    def change(self, **fields: Any) -> None:
        """Change the record and write it."""
        self.keep(self.record.model_copy(update=fields))

    def keep(self, record: Deployment) -> None:
        """Write ``record``."""
        records.save(record)
        self.record = record

    @contextmanager
    def making(self, resource: Resource) -> Iterator[None]:
        """Around the making of a resource: intended before, made after."""
        known = [r for r in self.record.of_type(resource.type) if r.name == resource.name]
        keys = {*resource.keys, *(key for earlier in known for key in earlier.keys)}
        made = any(earlier.made for earlier in known)
        intended = resource.model_copy(update={"made": made, "keys": tuple(sorted(keys))})
        self.keep(self.record.with_resource(intended))
        yield
        self.keep(self.record.with_resource(intended.model_copy(update={"made": True})))

    def forget(self, resource: Resource) -> None:
        """The resource is gone."""
        self.keep(self.record.without(resource.type, resource.name))

    def say(self, state: str, line: str = "", lasting: bool = False) -> None:
        """Tell the observer what is being done."""
        self.observe(Progress(state, line=line, lasting=lasting))

    def watch(self, generation: Generation, limit_seconds: float) -> Watch:
        """A watch over the endpoint at that generation's price."""
        return Watch(
            self.aws,
            self.record.name,
            self.observe,
            self.clock,
            limit_seconds,
            generation.plan.price_per_hour_usd,
        )

    def tail(self, since: float) -> Tail:
        """The endpoint's log from ``since`` on."""
        return Tail(self.aws, self.record.name, since)
