"""Evidence of speed for the small catalogue: round numbers, on the GPUs of two instance types."""

from dataclasses import replace
from datetime import date
from typing import Any

from peagle.catalog.evidence import best_first
from peagle.catalog.schema import Catalog, Seconds, Speed, SpeedRun
from tests.unit.planning.small_catalog import CATALOG, CHAT

SLOW, FAST = "GPU-sm_89", "GPU-sm_120"
"""The GPUs of ml.g6e.xlarge ($3.00 in eu-west-1) and ml.g7e.2xlarge ($4.20 in us-east-1)."""
TABLE: dict[tuple[str | None, int], dict[int, float]] = {
    (None, 0): {1: 100, 8: 500, 32: 1600},
    ("p-eagle", 3): {1: 180, 8: 900, 32: 1500},
    ("p-eagle", 7): {1: 240, 8: 800, 32: 1200},
    ("eagle3", 3): {1: 150, 8: 600, 32: 1000},
}
"""Speculation pays with 1 and 8 requests at a time and loses with 32; K=7 is best with 1."""


def row(drafter: str | None, k: int, load: int, speed: float, **other: Any) -> Speed:
    """A measured row, of the default size of requests unless ``other`` says more."""
    size = {"prompt_tokens": 2048, "output_tokens": 256}
    times = Seconds(mean=0.1, p50=0.1, p90=0.2, p99=0.3)
    measured = {"ttft_seconds": times, "itl_seconds": times}
    return Speed(
        drafter=drafter,
        k=k,
        concurrency=load,
        output_tokens_per_second=speed,
        **{**size, **measured, **other},
    )


def run(gpu: str = FAST, times: float = 1, **other: Any) -> SpeedRun:
    """The table as measured on one such GPU, ``times`` as fast."""
    rows = tuple(
        row(drafter, k, load, speed * times)
        for (drafter, k), curve in TABLE.items()
        for load, speed in curve.items()
    )
    settings: dict[str, Any] = {
        "target": CHAT.id,
        "date": date(2026, 11, 20),
        "vllm": "0.28.0",
        "gpu": gpu,
        "tensor_parallel_size": 1,
        "synthetic": False,
        "file": "speed.json",
        "speeds": rows,
    }
    return SpeedRun(**settings | other)


def measured(*runs: SpeedRun, catalog: Catalog = CATALOG) -> Catalog:
    """The small catalogue with this evidence."""
    return replace(catalog, speeds={CHAT.id: best_first(runs)})
