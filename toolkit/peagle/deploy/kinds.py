"""What a kind of resource is, and the comparison of what a plan sets with what the account has.

A kind says what a plan sets (``desired``) and what the account has (``read``), compares the two,
and makes the second the first (``put``, ``delete``). ``compare_kind`` is what a deploy shows before
it changes anything, and what drift is.

What an endpoint serves is spread over its model, configuration and component, and is compared as
one ``Served`` (``diff``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from peagle.aws.client import Aws
from peagle.deploy.context import DeploymentContext
from peagle.deploy.diff import Change
from peagle.deploy.state import Resource, ResourceType, Revision
from peagle.planning.plan import Plan

Body = Mapping[str, Any]

EXISTS = "exists"
"""In a comparison, a resource that is on one side only."""


def compare_keys(area: str, planned: Body, actual: Body) -> Iterator[Change]:
    """The keys that differ, on either side: before, what the account has; after, what the plan
    sets."""
    for key in dict.fromkeys((*planned, *actual)):
        if planned.get(key) != actual.get(key):
            yield Change(f"{area}.{key}", actual.get(key), planned.get(key))


def compare_leaves(path: str, planned: Any, actual: Any) -> Iterator[Change]:
    """The leaves that differ. What AWS adds to a mapping that the plan has is not a difference."""
    if isinstance(planned, Mapping) and isinstance(actual, Mapping):
        for key, value in planned.items():
            yield from compare_leaves(f"{path}.{key}", value, actual.get(key))
    elif isinstance(planned, list) and isinstance(actual, list) and len(planned) == len(actual):
        for at, pair in enumerate(zip(planned, actual, strict=True)):
            yield from compare_leaves(f"{path}[{at}]", *pair)
    elif planned != actual and not (planned is None and not actual):
        yield Change(path, actual, planned)


@dataclass(frozen=True)
class TaggedDeployment:
    """What the tags in the account say of a deployment: ``configs`` and ``models`` as described,
    each with its revision. ``revision`` is the one in service."""

    name: str
    revision: str = ""
    configs: Collection[tuple[Body, str]] = ()
    models: Collection[tuple[Body, str]] = ()
    ends: bool = False
    copies: bool = False


@dataclass(frozen=True)
class AppliedPlan:
    """A plan that is applied as the revision with that name, and with that end, in epoch
    seconds."""

    plan: Plan
    revision: str = ""
    ends_at: float | None = None


class Kind:
    """One kind of resource. ``area`` is its name in a drift, and ``path`` how the fields of one
    begin, which is the field of one that does not exist."""

    type: ResourceType
    noun: str = ""
    area: ClassVar[str] = ""
    path: ClassVar[str] = ""

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        """Name -> document of what the plan sets."""
        return {}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        """Name -> document of those that the account has. Raises AccessDenied."""
        return {}

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        """Create it, or make it equal to ``body``; it is on record before and after."""
        is_made = any(e.name == name and e.made for e in context.record.of_type(self.type))
        with context.creating(revision.resource(self.type, name)):
            context.say(f"{'Updating' if is_made else 'Creating'} {self.noun}", name)
            self.create(context, revision, name, body)

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        """The call of AWS."""

    def remove(self, context: DeploymentContext, resource: Resource) -> bool:
        """Remove it; ``False`` if it was not ours to remove."""
        self.delete(context.aws, context.record.name, resource)
        return True

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        """The call of AWS; ignores one that does not exist."""

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        """Those that the endpoint has, or had, whether or not a deploy of this machine recorded
        them: they carry no tags that AWS would find, but their names are known. Raises
        AccessDenied."""
        yield from ()

    def resource(self, name: str, revision: str = "") -> Resource:
        """The record of one that the account has."""
        return Resource(type=self.type, name=name, made=True, revision=revision)

    def is_stale(self, plan: Plan, name: str) -> bool:
        """Whether one that is on record is removed, because this plan does not set it."""
        return name not in self.desired(AppliedPlan(plan))

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Change]:
        """The fields that differ."""
        return compare_leaves(self.path.format(name), desired, actual)


def compare_kind(
    kind: Kind, aws: Aws, applied: AppliedPlan, recorded: Collection[Resource] = ()
) -> Iterator[Change]:
    """Where the account differs from the applied plan. Those that are ``recorded`` and that the
    plan removes are too many; further resources are others'. Raises AccessDenied."""
    plan, desired = applied.plan, kind.desired(applied)
    others = (resource.name for resource in recorded if resource.name not in desired)
    names = (*desired, *(name for name in others if kind.is_stale(plan, name)))
    actual = kind.read(aws, plan, names) if names else {}
    for name in names:
        if name in desired and name in actual:
            yield from kind.compare(name, desired[name], actual[name])
        elif name in desired:
            yield Change(kind.path.format(name), None, EXISTS)
        elif name in actual:
            yield Change(kind.path.format(name), EXISTS, None)
