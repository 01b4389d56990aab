"""New snapshots of the catalogue's tables from AWS, and their differences from the old ones.

    images       sagemaker-core's table of images                      -> runtimes
    digests      ECR                                                   -> runtimes
    instances    botocore's list of types, numbers of EC2              -> instances
    prices       the Pricing API                                       -> instances
    hosting      regions in the Pricing API                            -> instances
    quotas       codes and defaults of Service Quotas                  -> instances

Each part is a function from tables to tables and findings; nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from peagle.aws.client import Connect
from peagle.aws.prices import fetch_prices, hosting_regions
from peagle.aws.quotas import default_quotas
from peagle.aws.refresh_sources import (
    describe_types,
    endpoint_types,
    sdk_images,
    with_digests,
    with_images,
    with_types,
)
from peagle.catalog.tables import (
    Instance,
    InstanceTable,
    Price,
    Runtime,
    RuntimeTable,
    domain,
)
from peagle.catalog.writing import Tables
from peagle.errors import Fix, PeagleError
from peagle.findings import Finding, note, warning
from peagle.text import format_unit_price

Part = Literal["images", "digests", "instances", "prices", "hosting", "quotas"]

Result = tuple[Tables, list[Finding]]

_INSTANCE_KEYS = ("gpu_count", "gpu_memory_mib", "vcpus", "memory_gib", "nvme_gb", "quota_code",
                  "quota_default")  # fmt: skip
_RUNTIME_KEYS = ("repository", "tag", "digest", "cuda", "ami")


@dataclass(frozen=True)
class Change:
    """A changed value: the file, the entry, the key, and the old value (``None`` for a new entry).

    ``confirmed``: AWS reports the same value as the table, and only the date is new.
    """

    file: str
    entry: str
    key: str
    before: str | None
    after: str
    confirmed: bool = False


@dataclass(frozen=True)
class Refreshed:
    """The new tables, findings about them, and the error of each part that failed."""

    tables: Tables
    findings: tuple[Finding, ...]
    failed: Mapping[Part, PeagleError]


def refresh_tables(
    before: Tables, parts: Collection[Part], regions: Sequence[str], connect: Connect
) -> Refreshed:
    """Both tables as AWS reports them today.

    A part that fails leaves its values unchanged and is in ``failed``; a warning names all parts
    that failed for the same reason.
    """
    tables = before
    findings: list[Finding] = []
    failed: dict[Part, PeagleError] = {}
    for name, refresh in PARTS.items():
        if name in parts:
            try:
                tables, found = refresh(tables, regions, connect)
                findings += found
            except PeagleError as error:
                failed[name] = error
    today = {"checked": datetime.now(UTC).date()}
    if tables.runtimes != before.runtimes:
        tables = replace(tables, runtimes=tables.runtimes.model_copy(update=today))
    if tables.instances != before.instances:
        tables = replace(tables, instances=tables.instances.model_copy(update=today))
    return Refreshed(tables, (*findings, *_failures(failed)), failed)


def _failures(failed: Mapping[Part, PeagleError]) -> Iterator[Finding]:
    errors = {str(error): error for error in failed.values()}
    for reason, error in errors.items():
        parts = ", ".join(part for part, own in failed.items() if str(own) == reason)
        fix = Fix(
            error.fix or ("" if error.command else "run the command again later"),
            tuple(error.command),
        )
        yield warning("not-refreshed", parts, f"not refreshed: {error.message}", fix)


def _images(tables: Tables, _regions: Sequence[str], _connect: Connect) -> Result:
    found = sdk_images(tables.runtimes)
    new = with_images(tables.runtimes, found)
    if new != tables.runtimes:
        new = new.model_copy(update={"source": found.source})
    message = f"{', '.join(found.unread)}: the SDK's entry has no CUDA version of a known AMI"
    unread = note("images-unread", "runtimes", message, "add it by hand")
    return replace(tables, runtimes=new), [unread] if found.unread else []


def _digests(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    new, unknown = with_digests(tables.runtimes, connect(regions[0]))
    message = f"ECR in {regions[0]} reports no digest of vLLM {', '.join(unknown)}"
    fix = "plans name the tag then, which AWS can move; try another --region"
    missing = note("digests-unknown", "runtimes", message, fix)
    return replace(tables, runtimes=new), [missing] if unknown else []


def _instances(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    known = {instance.type for instance in tables.instances.instances}
    types = [*dict.fromkeys([*sorted(known), *endpoint_types()])]
    new, unknown = with_types(tables.instances, types, describe_types(connect(regions[0]), types))
    message = f"skipped, because EC2 in {regions[0]} does not describe: {', '.join(unknown)}"
    missing = note("types-without-numbers", "instances", message, "try another --region")
    return replace(tables, instances=new), [missing] if unknown else []


def _prices(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    table, findings = tables.instances, []
    for region in regions:
        listed = fetch_prices(connect(region))
        if not listed.usd:
            message = f"AWS lists no prices for hosting in {region}"
            fix = "the region may have no GPU instances, or no SageMaker"
            findings.append(warning("prices-missing", "prices", message, fix))
        table = listed.applied_to(table)
    return replace(tables, instances=table), findings


def _hosting(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    """All regions of the types; those of another partition stay, and so do those of types that are
    not listed."""
    aws, new, unlisted = connect(regions[0]), [], []
    for instance in tables.instances.instances:
        found = hosting_regions(aws, instance.type)
        if found:
            kept = {one for one in instance.regions if domain(one) != domain(aws.region)}
            complete = tuple(sorted(found | kept))
            instance = instance.model_copy(update={"regions": complete})
        else:
            unlisted.append(instance.type)
        new.append(instance)
    table = tables.instances.model_copy(update={"instances": tuple(new)})
    message = f"AWS lists no hosting in any region for {', '.join(unlisted)}"
    fix = "their regions stay as they are"
    missing = note("types-not-hosted", "hosting", message, fix)
    return replace(tables, instances=table), [missing] if unlisted else []


def _quotas(tables: Tables, regions: Sequence[str], connect: Connect) -> Result:
    found = default_quotas(connect(regions[0]))
    new = []
    for instance in tables.instances.instances:
        if quota := found.get(instance.type):
            code = quota.code or instance.quota_code
            changed = {"quota_code": code, "quota_default": quota.value}
            instance = instance.model_copy(update=changed)
        new.append(instance)
    table = tables.instances.model_copy(update={"instances": tuple(new)})
    return replace(tables, instances=table), []


PARTS: dict[Part, Callable[[Tables, Sequence[str], Connect], Result]] = {
    "images": _images,
    "digests": _digests,
    "instances": _instances,
    "prices": _prices,
    "hosting": _hosting,
    "quotas": _quotas,
}
"""In the order in which they run: a new image gets its digest, a new type its price and quota."""


def table_changes(before: Tables, after: Tables) -> tuple[Change, ...]:
    """All differences, in the order of the files."""
    return (
        *_runtime_changes(before.runtimes, after.runtimes),
        *_instance_changes(before.instances, after.instances),
    )


def _runtime_changes(before: RuntimeTable, after: RuntimeTable) -> Iterator[Change]:
    file = "runtimes.yaml"
    for region, account in after.accounts.items():
        if before.accounts.get(region) != account:
            yield Change(file, "accounts", region, before.accounts.get(region), account)
    known = {runtime.vllm: runtime for runtime in before.runtimes}
    for new in after.runtimes:
        old, entry = known.get(new.vllm), f"vLLM {new.vllm}"
        if old is None:
            image = f"{new.repository}:{new.tag} in {len(new.regions)} regions"
            yield Change(file, entry, "new", None, image)
            continue
        yield from _key_changes(file, entry, old, new, _RUNTIME_KEYS)
        yield from _region_changes(file, entry, old, new)


def _region_changes(
    file: str, entry: str, old: Instance | Runtime, new: Instance | Runtime
) -> Iterator[Change]:
    added, gone = set(new.regions) - set(old.regions), set(old.regions) - set(new.regions)
    if added or gone:
        signed = [*(f"+{one}" for one in sorted(added)), *(f"-{one}" for one in sorted(gone))]
        before = f"{len(old.regions)} regions" if old.regions else None
        yield Change(file, entry, "regions", before, " ".join(signed))


def _instance_changes(before: InstanceTable, after: InstanceTable) -> Iterator[Change]:
    file = "instances.yaml"
    known = {instance.type: instance for instance in before.instances}
    for new in after.instances:
        old = known.get(new.type)
        if old is None:
            gpus = f"{new.gpu_count} x {new.gpu}, {new.gpu_memory_mib} MiB each"
            yield Change(file, new.type, "new", None, gpus)
            unset = {"prices": (), "regions": (), "quota_code": None, "quota_default": None}
            old = new.model_copy(update=unset)
        yield from _key_changes(file, new.type, old, new, _INSTANCE_KEYS)
        yield from _region_changes(file, new.type, old, new)
        prices: Mapping[str, Price] = {price.region: price for price in old.prices}
        for now in new.prices:
            was = prices.get(now.region)
            if was != now:
                confirmed = was is not None and was.usd_per_hour == now.usd_per_hour
                key, text = f"price in {now.region}", None if was is None else _price(was)
                yield Change(file, new.type, key, text, _price(now), confirmed)


def _key_changes(
    file: str, entry: str, old: Instance | Runtime, new: Instance | Runtime, keys: tuple[str, ...]
) -> Iterator[Change]:
    for key in keys:
        was, now = getattr(old, key), getattr(new, key)
        if was != now:
            yield Change(file, entry, key, None if was is None else _value(was), _value(now))


def _price(price: Price) -> str:
    return f"{format_unit_price(price.usd_per_hour)} ({price.date.isoformat()})"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
