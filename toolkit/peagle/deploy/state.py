"""A deployment as a record keeps it: revisions, resources, what it has cost, and how it failed.

The tags in the account are the truth and the record is a cache: ``discover`` makes one of what
another machine deployed. This module does not import boto3, so that listing and completing names
is quick.

Every command that starts or ends instances records the price per hour of all that runs from then
on, in ``PriceHistory``.
"""

from __future__ import annotations

from typing import Annotated, Literal
from uuid import uuid4

from pydantic import AliasChoices, Field

from peagle.deploy.served import Served
from peagle.errors import PeagleError
from peagle.planning.options import Frozen
from peagle.planning.plan import Plan
from peagle.proof import Proof

ResourceType = Literal[
    "Endpoint",
    "Schedule",
    "SchedulerRole",
    "Dashboard",
    "Alarm",
    "MetricFilter",
    "LifecycleRule",
    "EndpointConfig",
    "Model",
    "S3Objects",
    "S3Bucket",
]

_HOUR = 3600

Moment = Annotated[float, Field(ge=0, lt=253_402_300_800, allow_inf_nan=False)]
"""Epoch seconds before the year 10000, which is where Python's dates end."""


class Resource(Frozen):
    """A resource in the account. ``made`` is false until AWS confirms its creation.

    ``revision`` is a revision's fingerprint. ``keys`` are the objects of an ``S3Objects``, whose
    name is their ``s3://`` prefix, and ``contents`` is a hash of the files. A ``MetricFilter`` is
    one of the endpoint's log, and a ``LifecycleRule`` has the prefix of what it deletes.
    """

    type: ResourceType
    name: str
    made: bool = False
    revision: str
    keys: tuple[str, ...] = ()
    contents: str = ""

    @property
    def text(self) -> str:
        """Such as ``Endpoint peagle-tiny``."""
        return f"{self.type} {self.name}"

    def document(self) -> dict[str, str]:
        """For ``--json``."""
        return {"type": self.type, "name": self.name}


class Revision(Frozen):
    """One plan as applied: with role, bucket and resource names.

    ``fingerprint`` is a hash of the complete requests and of the uploaded files: equal
    fingerprints mean that applying again would change nothing. ``plan`` is ``None`` for what
    another machine deployed. ``name`` tells revisions apart, and is that of the endpoint
    configuration. With copies of the model it is the model's, and ``instances_config`` is the
    configuration of the instances, which revisions share.
    """

    fingerprint: str
    served: Served
    plan: Plan | None
    role: str
    bucket: str | None
    model: str
    name: str
    instances_config: str = ""
    proof: Proof | None = None

    def resource(self, kind: ResourceType, name: str) -> Resource:
        """A resource of this revision, which AWS has not confirmed yet."""
        return Resource(type=kind, name=name, revision=self.fingerprint)

    @property
    def endpoint_config(self) -> str:
        """The name of its endpoint configuration."""
        return self.instances_config or self.name


class RunningComparison(Frozen):
    """A second variant of the endpoint, which shares the requests with the revision in service.

    ``candidate`` is its revision, whose own configuration serves after `peagle promote`; ``config``
    is the configuration with both. ``share`` is the candidate's of the requests, between 0 and 1.
    ``since`` is when both began to serve, in epoch seconds; ``None`` before that.
    """

    candidate: Revision
    config: str
    share: float
    since: Moment | None = None


class Failure(Frozen):
    """The error that ended the last deploy; ``command`` is the fix as argv, if there is one."""

    message: str
    fix: str = ""
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: PeagleError) -> Failure:
        return cls(message=error.message, fix=error.fix, command=tuple(error.command))


class PricePeriod(Frozen):
    """From ``since`` (epoch seconds) on, what runs costs ``usd_per_hour``; ``None``: unknown.

    ``extra_usd_per_hour`` of it is for instances that the price of the most instances, by which
    a budget is counted, does not contain: those of an update, a temporary endpoint, a comparison.
    """

    since: Moment
    usd_per_hour: float | None
    extra_usd_per_hour: float = Field(
        0.0, validation_alias=AliasChoices("extra_usd_per_hour", "besides_usd_per_hour")
    )


class PriceHistory(Frozen):
    """The ``periods`` of one endpoint, in their order; ``extra_usd`` is what extra instances
    have cost in those that have ended, and on other machines."""

    periods: tuple[PricePeriod, ...] = ()
    extra_usd: float = Field(0.0, validation_alias=AliasChoices("extra_usd", "besides_usd"))

    @property
    def last(self) -> PricePeriod | None:
        return self.periods[-1] if self.periods else None

    def then(self, now: float, usd_per_hour: float | None, extra: float = 0.0) -> PriceHistory:
        """The history with another price from ``now`` on."""
        last = self.last
        same = (usd_per_hour, extra)
        if last and (last.usd_per_hour, last.extra_usd_per_hour) == same:
            return self
        period = PricePeriod(since=now, usd_per_hour=usd_per_hour, extra_usd_per_hour=extra)
        spent = self.extra_usd_by(now)
        return PriceHistory(periods=(*self.periods, period), extra_usd=spent)

    def cost(self, until: float) -> float | None:
        """USD for everything until then, ``None`` where a price is unknown."""
        ends = [*(one.since for one in self.periods[1:]), until]
        total = 0.0
        for period, end in zip(self.periods, ends, strict=False):  # one end more without periods
            if period.usd_per_hour is None:
                return None
            total += period.usd_per_hour * max(0.0, min(end, until) - period.since) / _HOUR
        return total

    def extra_usd_by(self, now: float) -> float:
        """USD for the extra instances until ``now``."""
        last = self.last
        if last is None:
            return self.extra_usd
        return self.extra_usd + last.extra_usd_per_hour * max(0.0, now - last.since) / _HOUR


class Deployment(Frozen):
    """Everything known about one endpoint.

    ``peagle.deploy.revisions`` explains ``serving``, ``pending`` and ``previous``.
    ``returning_to`` is the fingerprint of the revision that ``peagle rollback`` returns to, from
    its start until its result is reported. ``comparison`` is set from the start of `peagle compare`
    until `peagle promote` or `peagle drop` has ended it.
    ``billing_since`` is when the endpoint was requested, in epoch seconds. ``owner`` is the
    template or program that changes it; empty for this toolkit. ``ends_at`` is when EventBridge
    Scheduler deletes the endpoint, in epoch seconds, if it does, and ``budget_usd`` what it may
    have cost by then since it was requested, if that is limited. ``latest_end`` is the end if
    no extra instances run. ``most_usd_per_hour`` is the price of the most instances that may run;
    either is ``None`` where unknown. ``history`` is what has run.
    """

    format: Literal[3] = 3
    id: str = Field(default_factory=lambda: uuid4().hex)
    name: str
    scope: str
    account: str
    region: str
    serving: Revision | None = None
    pending: Revision | None = None
    previous: Revision | None = None
    returning_to: str = ""
    comparison: RunningComparison | None = None
    resources: tuple[Resource, ...] = ()
    billing_since: Moment | None = None
    owner: str = ""
    failure: Failure | None = None
    ends_at: Moment | None = None
    budget_usd: float | None = None
    latest_end: Moment | None = None
    most_usd_per_hour: float | None = None
    history: PriceHistory = PriceHistory()

    def __repr__(self) -> str:
        pairs = ", ".join(dict.fromkeys(one.served.pair for one in self.revisions)) or "nothing"
        return f"<Deployment {self.name} in {self.region}, {self.scope}: {pairs}>"

    @property
    def key(self) -> tuple[str, str, str]:
        """Scope, region and name: what ``load_record`` and ``deployment_lock`` take."""
        return self.scope, self.region, self.name

    @property
    def current(self) -> Revision:
        """The revision of the last deploy."""
        revision = self.pending or self.serving
        if revision is None:
            raise ValueError(f"the record of {self.name} has no revision")
        return revision

    @property
    def revisions(self) -> tuple[Revision, ...]:
        """The revisions whose configuration, model and weights are kept."""
        candidate = self.comparison.candidate if self.comparison else None
        found = (self.serving, self.pending, self.previous, candidate)
        return tuple(one for one in found if one)

    def with_resource(self, resource: Resource) -> Deployment:
        """The record with ``resource``, in place of an earlier entry of that type and name."""
        by_name = {(r.type, r.name): r for r in self.resources}
        by_name[resource.type, resource.name] = resource
        return self.model_copy(update={"resources": tuple(by_name.values())})

    def without(self, kind: str, name: str) -> Deployment:
        """The record without that resource."""
        kept = tuple(r for r in self.resources if (r.type, r.name) != (kind, name))
        return self.model_copy(update={"resources": kept})

    def of_type(self, kind: ResourceType) -> tuple[Resource, ...]:
        return tuple(resource for resource in self.resources if resource.type == kind)
