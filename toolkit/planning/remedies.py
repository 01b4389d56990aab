"""What would make it fit, or hold the load, on one instance type: found by trying, in numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from toolkit.catalog.tables import Instance
from toolkit.planning.hosting import holds, host
from toolkit.planning.memory import Workload

_SHORTEST = 1024
"""Tokens below which a context is no remedy."""

_STEP = 256
"""Contexts are named in multiples of so many tokens."""


def remedies(work: Workload, instance: Instance) -> str:
    """Which single options make it fit there: ``lower --concurrency to 5461, or --k to 1``."""

    def fits(**change: int) -> bool:
        return host(replace(work, **change), instance, 0).fit.fits  # type: ignore[arg-type]

    return " or ".join(_single(work, fits))


def _single(work: Workload, fits: Callable[..., bool]) -> Iterator[str]:
    length = _largest(_SHORTEST, work.max_model_len, lambda n: fits(max_model_len=n))
    if length:
        yield f"lower --max-model-len to {length // _STEP * _STEP}"
    requests = _largest(1, work.concurrency, lambda n: fits(concurrency=n))
    if requests:
        yield f"lower --concurrency to {requests}"
    k = _largest(1, work.k, lambda n: fits(k=n)) if work.drafter is not None else None
    if k:
        yield f"lower --k to {k}"


def longest_held(work: Workload, instance: Instance, load: int) -> int | None:
    """The longest context of which the cache holds enough for ``load`` requests at a time."""

    def held(length: int) -> bool:
        return holds(host(replace(work, max_model_len=length), instance, load).fit, load)

    length = _largest(_SHORTEST, work.max_model_len, held)
    return length // _STEP * _STEP if length else None


def _largest(low: int, high: int, fine: Callable[[int], bool]) -> int | None:
    """The largest number from ``low`` to below ``high`` that is fine; more is never finer."""
    best, high = None, high - 1
    while low <= high:
        middle = (low + high) // 2
        if fine(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best
