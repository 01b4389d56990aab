"""How torch's allocator rounds what vLLM asks of it while it loads.

Small tensors share segments and lose at most 511 bytes. From 10 MiB on a tensor gets a segment of
its own, a multiple of 2 MiB; vLLM loads with ``max_split_size_mb`` 20, so that what is larger is
never shared, and what is smaller is cut off where more than 1 MiB would be lost
(c10/cuda/CUDACachingAllocator.cpp; Worker.load_model).
"""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.fit.gpus import round_up

MIB = 1 << 20

_SMALLEST = 512
_OWN_SEGMENT = 10 * MIB
_SEGMENT = 2 * MIB
_NEVER_CUT = 20 * MIB
_CUT_FROM = 1 * MIB


def allotted(size: float) -> int:
    """Bytes that a tensor of ``size`` bytes takes while loading."""
    rounded = round_up(int(size), _SMALLEST)
    if rounded < _OWN_SEGMENT:
        return rounded
    segment = round_up(rounded, _SEGMENT)
    if rounded < _NEVER_CUT and segment - rounded > _CUT_FROM:
        return rounded
    return segment


def allotted_all(sizes: Iterable[float]) -> int:
    """Bytes that tensors of these sizes take."""
    return sum(map(allotted, sizes))
