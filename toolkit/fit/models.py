"""The answer of the memory fit. Data without behaviour."""

from __future__ import annotations

from toolkit.catalog.models import Entry


class Fit(Entry):
    """The memory fit of one GPU rank. GiB and tokens; ``terms`` names every part."""

    fits: bool
    gpu: str
    gpu_count: int
    gpu_memory_gib: float
    tensor_parallel_size: int
    weights_gib: float
    drafter_gib: float
    kv_cache_gib: float
    kv_cache_tokens: int
    max_concurrency: float
    terms: dict[str, float]
