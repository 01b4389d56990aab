"""What differs between two tables, entry by entry.

The parts of a refresh, run one after the other over the two tables.

New snapshots for the catalogue, from AWS: what changed, and the tables as they should be.

    images       sagemaker-core's own table of images          -> runtimes
    instances    botocore's list of types, EC2's numbers       -> instances
    prices       the Pricing API                               -> instances
    quotas       codes and defaults of Service Quotas          -> instances
    changes      what differs between two tables, for people and as data

Each part is a function from table to table; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any, Literal

from peagle.aws.client import Aws
from peagle.aws.prices import ask_prices
from peagle.aws.quotas import default_quotas
from peagle.aws.refresh_sources import (
    endpoint_types,
    numbers_of,
    sdk_images,
    with_digests,
    with_images,
    with_types,
)
from peagle.catalog.tables import Instance, InstanceTable, Price, Runtime, RuntimeTable
from peagle.errors import PeagleError
from peagle.findings import Finding, note, warning
from peagle.text import rate

_INSTANCE_KEYS = ("gpu_count", "gpu_memory_mib", "vcpus", "memory_gib", "nvme_gb", "quota_code",
                  "quota_default")  # fmt: skip
_RUNTIME_KEYS = ("repository", "tag", "digest", "cuda", "ami")


@dataclass(frozen=True)
class Change:
    """One thing that changed: in which file, of which entry, from what (``None``: it is new).

    ``confirmed``: AWS says what the table says already, and only its date is new.
    """

    file: str
    entry: str
    key: str
    before: str | None
    after: str
    confirmed: bool = False


def changes(
    before: RuntimeTable | InstanceTable, after: RuntimeTable | InstanceTable
) -> tuple[Change, ...]:
    """Everything that differs, in the order of the file."""
    if isinstance(before, RuntimeTable) and isinstance(after, RuntimeTable):
        return tuple(_of_runtimes(before, after))
    if isinstance(before, InstanceTable) and isinstance(after, InstanceTable):
        return tuple(_of_instances(before, after))
    raise TypeError("two tables of the same kind")


def _of_runtimes(before: RuntimeTable, after: RuntimeTable) -> Iterator[Change]:
    file = "runtimes.yaml"
    for region, account in after.accounts.items():
        if before.accounts.get(region) != account:
            yield Change(file, "accounts", region, before.accounts.get(region), account)
    known = {runtime.vllm: runtime for runtime in before.runtimes}
    for new in after.runtimes:
        old = known.get(new.vllm)
        if old is None:
            words = f"{new.repository}:{new.tag} in {len(new.regions)} regions"
            yield Change(file, f"vLLM {new.vllm}", "new", None, words)
            continue
        yield from _keys(file, f"vLLM {new.vllm}", old, new, _RUNTIME_KEYS)
        added, gone = set(new.regions) - set(old.regions), set(old.regions) - set(new.regions)
        if added or gone:
            signed = [*(f"+{one}" for one in sorted(added)), *(f"-{one}" for one in sorted(gone))]
            was = f"{len(old.regions)} regions"
            yield Change(file, f"vLLM {new.vllm}", "regions", was, " ".join(signed))


def _of_instances(before: InstanceTable, after: InstanceTable) -> Iterator[Change]:
    file = "instances.yaml"
    known = {instance.type: instance for instance in before.instances}
    for new in after.instances:
        old = known.get(new.type)
        if old is None:
            words = f"{new.gpu_count} x {new.gpu}, {new.gpu_memory_mib} MiB each"
            yield Change(file, new.type, "new", None, words)
            old = new.model_copy(update={"prices": (), "quota_code": None, "quota_default": None})
        yield from _keys(file, new.type, old, new, _INSTANCE_KEYS)
        yield from _prices(file, old, new)


def _keys(
    file: str, entry: str, old: Instance | Runtime, new: Instance | Runtime, keys: tuple[str, ...]
) -> Iterator[Change]:
    for key in keys:
        was, now = getattr(old, key), getattr(new, key)
        if was != now:
            yield Change(file, entry, key, None if was is None else _shown(was), _shown(now))


def _prices(file: str, old: Instance, new: Instance) -> Iterator[Change]:
    known: Mapping[str, Price] = {price.region: price for price in old.prices}
    for now in new.prices:
        was = known.get(now.region)
        if was != now:
            same = was is not None and was.usd_per_hour == now.usd_per_hour
            before = None if was is None else _dollars(was)
            yield Change(file, new.type, f"price in {now.region}", before, _dollars(now), same)


def _dollars(price: Price) -> str:
    return f"{rate(price.usd_per_hour)} ({price.date.isoformat()})"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


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


def _prices_parts(tables: Refreshed, regions: Sequence[str], connect: Connect) -> Refreshed:
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
    "prices": _prices_parts,
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


__all__ = ["PARTS", "Change", "Part", "Refreshed", "changes", "refreshed"]
