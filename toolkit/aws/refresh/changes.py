"""What differs between two tables, entry by entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.catalog.tables import Instance, InstanceTable, Price, Runtime, RuntimeTable
from toolkit.money import rate

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
