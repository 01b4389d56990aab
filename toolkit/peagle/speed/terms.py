"""The terms of a step: kernels on the roofline, and times with one constant each.

A kernel reads bytes and computes FLOPs. Loads and tensor cores run side by side, so that it takes

    max(weights x bytes / bandwidth, compute x FLOPs / peak)

with ``cache`` in place of ``weights`` where it reads the KV cache, and ``grouped`` in place of
``compute`` where it multiplies one small matrix for each expert: the roofline of Williams, Waterman
and Patterson (2009). A kernel that converts MXFP4 weights to 16 bits in software does so
with the threads that issue its matrix instructions, so that both times add up (``converts``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from peagle.catalog.speed_model import StepConstants

SMALLEST_TILE, LARGEST_EXTRA = 16, 32
"""Rows of the smallest tile, and of half the largest one that kernels choose for few rows."""
LARGEST_MXFP4_TILE = 128
"""Rows of the largest tile with MXFP4 weights."""
LEAST_LIKELY_TILE = 1e-3
"""Tiles that are less likely than this do not count."""


def tile_rows(rows: float) -> float:
    """The rows that a grouped matrix multiplication of 16-bit weights computes for an expert with
    this many on average.

    Kernels choose tiles of about twice the mean, from 16 to 64 rows, so that few experts need a
    second one, and compute whole tiles; an expert with more rows fills half of its last tile (the
    tuned tiles of vLLM's fused_moe/configs/E=128,N=768,device_name=NVIDIA_H200.json).
    """
    return max(SMALLEST_TILE, min(2 * rows, rows + LARGEST_EXTRA))


def tile_size(rows: float) -> int:
    """The rows of a tile with MXFP4 weights, for experts with this many rows on average: the next
    power of two from 16 to 128 (triton_kernels/matmul_ogs_details/opt_flags.py of vLLM 0.28.0)."""
    power = (max(math.floor(rows), 1) - 1).bit_length()
    return min(max(SMALLEST_TILE, 1 << power), LARGEST_MXFP4_TILE)


def further_tiles(tokens: float, share: float, size: int) -> float:
    """The tiles of ``size`` rows that an expert needs beyond its first, on average.

    Each of the tokens chooses the expert with probability ``share``, so the number of its rows is
    binomial, of which this takes the normal approximation. Of 24 rows on average hardly any expert
    needs more than one tile of 32, of 32 half of them do.
    """
    mean = tokens * share
    deviation = max(math.sqrt(mean * (1 - share)), 1e-6)
    found, tiles, likely = 0.0, 1, 1.0
    while likely > LEAST_LIKELY_TILE:
        likely = math.erfc((tiles * size + 0.5 - mean) / deviation / math.sqrt(2)) / 2
        found += likely
        tiles += 1
    return found


class Kernel(NamedTuple):
    """Kernels of one kind: seconds of their bytes at the data sheet's bandwidth, and of their FLOPs
    at its peak. ``grouped``: one matrix multiplication for each expert."""

    read: float
    compute: float
    grouped: bool = False
    converts: bool = False
    of_cache: bool = False

    @property
    def reads_by(self) -> str:
        """The constant of its bytes."""
        return "cache" if self.of_cache else "weights"

    @property
    def computes_by(self) -> str:
        """The constant of its FLOPs."""
        return "grouped" if self.grouped else "compute"

    def sides(self, constants: StepConstants) -> tuple[float, float]:
        """The times of its bytes and of its FLOPs."""
        reads = constants.cache if self.of_cache else constants.weights
        computes = constants.grouped if self.grouped else constants.compute
        return reads * self.read, computes * self.compute

    def seconds(self, constants: StepConstants) -> float:
        """Its time."""
        sides = self.sides(constants)
        return sum(sides) if self.converts else max(sides)


class Terms(NamedTuple):
    """The terms of one step: kernels, and times to be multiplied by the constant of that name."""

    kernels: tuple[Kernel, ...]
    step: float = 1.0
    layer: float = 0.0
    request: float = 0.0
    logits: float = 0.0
    drafter: float = 0.0
    drafter_layer: float = 0.0
    fixed: float = 0.0
    """Seconds with no constant to fit: all-reduces, and scheduling without overlap."""

    def bounds(self, constants: StepConstants) -> tuple[bool, ...]:
        """Which kernels wait for memory."""
        sides = (kernel.sides(constants) for kernel in self.kernels)
        return tuple(read >= compute for read, compute in sides)

    def coefficients(self, bounds: tuple[bool, ...]) -> Mapping[str, float]:
        """The factor of each constant if these kernels wait for memory."""
        found: dict[str, float] = defaultdict(float)
        for kernel, waits in zip(self.kernels, bounds, strict=True):
            if waits or kernel.converts:
                found[kernel.reads_by] += kernel.read
            if not waits or kernel.converts:
                found[kernel.computes_by] += kernel.compute
        return found | {
            "step": self.step,
            "layer": self.layer,
            "request": self.request,
            "logits": self.logits,
            "drafter": self.drafter,
            "drafter_layer": self.drafter_layer,
        }

    def seconds(self, constants: StepConstants) -> float:
        """The sum of the terms."""
        return (
            self.fixed
            + sum(kernel.seconds(constants) for kernel in self.kernels)
            + self.step * constants.step
            + self.layer * constants.layer
            + self.request * constants.request
            + self.logits * constants.logits
            + self.drafter * constants.drafter
            + self.drafter_layer * constants.drafter_layer
        )
