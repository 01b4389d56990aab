"""Which starts of vLLM are worth a row of memory.py: the most valuable first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.gpu.geometry import CARD_K, PAIRS, SECOND_K, Setting

_FIRST = ("gemma-4-31b", "gpt-oss-20b", "qwen3-coder-30b", "gpt-oss-120b")
"""Pairs in the order of what is still open: Gemma's heads of two widths are measured least."""

_VARIED = ("gpt-oss-20b", "qwen3-coder-30b")
"""Pairs with which one thing at a time is changed: one with and one without sliding windows."""


def settings() -> list[Setting]:
    """Every row. Those that the evidence has already are left out when the rows are run."""
    rows = [make(pair) for pair in _FIRST for make in (_second_k, _fp8, _card_at_80, _eagle3)]
    for changes in _VARIATIONS:
        rows += [replace(_card(pair), **change) for pair in _VARIED for change in changes]
    rows += [replace(_none(pair), max_num_seqs=seqs) for seqs in (16, 1024) for pair in _VARIED]
    rows += [replace(_none(pair), max_num_batched_tokens=16384) for pair in _VARIED]
    rows += list(_two_gpus())
    rows += [make(pair) for make in (_card, _none, _none_fp8) for pair in PAIRS]
    return list(dict.fromkeys(rows))


_VARIATIONS: tuple[tuple[dict[str, Any], ...], ...] = (
    tuple({"max_num_batched_tokens": tokens} for tokens in (16384, 2048, 32768)),
    tuple({"max_model_len": length} for length in (131072, 8192)),
    ({"enforce_eager": True}, {"enable_prefix_caching": True}),
    tuple({"max_num_seqs": requests} for requests in (1024, 16)),
    ({"own_tensors": False},),
)
"""One thing changed at a time, by groups."""


def _none(pair: str) -> Setting:
    return Setting(pair)


def _card(pair: str) -> Setting:
    return Setting(pair, "p-eagle", CARD_K[pair])


def _second_k(pair: str) -> Setting:
    return Setting(pair, "p-eagle", SECOND_K[pair])


def _eagle3(pair: str) -> Setting:
    return Setting(pair, "eagle3", 3)


def _fp8(pair: str) -> Setting:
    return replace(_card(pair), kv_cache_dtype="fp8")


def _none_fp8(pair: str) -> Setting:
    return Setting(pair, kv_cache_dtype="fp8")


def _card_at_80(pair: str) -> Setting:
    return replace(_card(pair), gpu_memory_utilization=0.8)


def _two_gpus() -> Iterator[Setting]:
    for make in (_card, _none):
        for pair in PAIRS:
            yield replace(make(pair), tensor_parallel_size=2)
