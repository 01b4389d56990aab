"""The parts of a refresh, run one after the other over the two tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Literal

from toolkit.aws.prices import ask_prices
from toolkit.aws.quotas import default_quotas
from toolkit.aws.refresh.digests import with_digests
from toolkit.aws.refresh.images import sdk_images, with_images
from toolkit.aws.refresh.instances import endpoint_types, numbers_of, with_types
from toolkit.aws.session import Aws
from toolkit.catalog.tables import Instance, InstanceTable, RuntimeTable
from toolkit.errors import PeagleError
from toolkit.findings import Finding, note, warning

Part = Literal["images", "digests", "instances", "prices", "quotas"]

Connect = Callable[[str], Aws]
"""A connection to a region, made only when a part needs one."""


@dataclass(frozen=True)
class Refreshed:
    """The tables as they should be, what is to be said about it, and why parts stay as they are."""

    runtimes: RuntimeTable
    instances: InstanceTable
    findings: tuple[Finding, ...] = field(default=())
    failed: Mapping[Part, PeagleError] = field(default_factory=dict)


def refreshed(
    runtimes: RuntimeTable,
    instances: InstanceTable,
    parts: Collection[Part],
    regions: Sequence[str],
    connect: Connect,
) -> Refreshed:
    """Both tables with what AWS says today. A part that cannot be had stays as it is: it is among
    the ``failed``, and a warning says so, one for all parts that failed for the same reason."""
    tables = Refreshed(runtimes, instances)
    failed: dict[Part, PeagleError] = {}
    for name in PARTS:
        if name not in parts:
            continue
        try:
            tables = PARTS[name](tables, regions, connect)
        except PeagleError as error:
            failed[name] = error
    for finding in _left(failed):
        tables = _saying(tables, finding)
    return _dated(replace(tables, failed=failed), runtimes, instances)


def _images(tables: Refreshed, _regions: Sequence[str], _connect: Connect) -> Refreshed:
    found = sdk_images(tables.runtimes)
    new = with_images(tables.runtimes, found)
    if new != tables.runtimes:
        new = new.model_copy(update={"source": found.source})
    skipped = f"{', '.join(found.unread)}: the SDK's entry says no CUDA that is known here"
    told = _saying(tables, note("images-unread", "runtimes", skipped, "add it by hand"))
    return replace(told if found.unread else tables, runtimes=new)


def _digests(tables: Refreshed, regions: Sequence[str], connect: Connect) -> Refreshed:
    table, unknown = with_digests(tables.runtimes, connect(regions[0]))
    if unknown:
        message = f"ECR in {regions[0]} tells no digest of vLLM {', '.join(unknown)}"
        fix = "images of ours are FROM their tags then; try another --region"
        tables = _saying(tables, note("digests-unknown", "runtimes", message, fix))
    return replace(tables, runtimes=table)


def _instances(tables: Refreshed, regions: Sequence[str], connect: Connect) -> Refreshed:
    known = {instance.type for instance in tables.instances.instances}
    types = [*dict.fromkeys([*sorted(known), *endpoint_types()])]
    table, unknown = with_types(tables.instances, types, numbers_of(connect(regions[0]), types))
    if unknown:
        message = f"without numbers, so left out: {', '.join(unknown)}"
        fix = f"EC2 in {regions[0]} tells nothing usable of them; try another --region"
        tables = _saying(tables, note("types-without-numbers", "instances", message, fix))
    return replace(tables, instances=table)


def _prices(tables: Refreshed, regions: Sequence[str], connect: Connect) -> Refreshed:
    table = tables.instances
    for region in regions:
        listed = ask_prices(connect(region))
        if not listed.usd:
            message = f"AWS lists no prices for hosting in {region}"
            fix = "the region may have no GPUs, or no SageMaker"
            tables = _saying(tables, warning("prices-missing", "prices", message, fix))
        table = listed.applied_to(table)
    return replace(tables, instances=table)


def _quotas(tables: Refreshed, regions: Sequence[str], connect: Connect) -> Refreshed:
    found = default_quotas(connect(regions[0]))

    def with_quota(instance: Instance) -> Instance:
        quota = found.get(instance.type)
        if quota is None:
            return instance
        code = quota.code or instance.quota_code
        return instance.model_copy(update={"quota_code": code, "quota_default": quota.value})

    new = tuple(with_quota(instance) for instance in tables.instances.instances)
    return replace(tables, instances=tables.instances.model_copy(update={"instances": new}))


PARTS: dict[Part, Callable[[Refreshed, Sequence[str], Connect], Refreshed]] = {
    "images": _images,
    "digests": _digests,
    "instances": _instances,
    "prices": _prices,
    "quotas": _quotas,
}
"""In the order in which they run: a new image gets its digest, a new type its price and quota."""


def _left(failed: Mapping[Part, PeagleError]) -> Iterator[Finding]:
    errors = {str(error): error for error in failed.values()}
    for reason, error in errors.items():
        parts = ", ".join(part for part, own in failed.items() if str(own) == reason)
        message = f"left as they are: {error.message}"
        yield warning("not-refreshed", parts, message, error.fix or "repeat it later")


def _saying(tables: Refreshed, finding: Finding) -> Refreshed:
    return replace(tables, findings=(*tables.findings, finding))


def _dated(tables: Refreshed, runtimes: RuntimeTable, instances: InstanceTable) -> Refreshed:
    """A table that changed was checked today."""
    today = {"checked": _today()}
    if tables.runtimes != runtimes:
        tables = replace(tables, runtimes=tables.runtimes.model_copy(update=today))
    if tables.instances != instances:
        tables = replace(tables, instances=tables.instances.model_copy(update=today))
    return tables


def _today() -> date:
    return datetime.now(UTC).date()
