"""``speed_model.yaml``: the constants of the performance model, which ``peagle.speed`` uses."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from peagle.catalog.tables import CatalogEntry, Positive

Constant = Annotated[float, Field(gt=0, lt=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class GpuSpeed(CatalogEntry):
    """One GPU by its data sheet: GB/s of memory, dense TFLOPS, GB/s to another GPU (one direction).
    ``memory_gib`` tells variants of one name apart.

    ``fp8_tflops`` is ``None`` where the GPU has no FP8 units, or computes in 16 bits.
    """

    gpu: str
    memory_gib: Positive | None = None
    memory_gb_per_second: Constant
    tflops: Constant
    fp8_tflops: Constant | None = None
    link: Literal["nvlink", "pcie"]
    link_gb_per_second: Constant
    source: str


class StepConstants(CatalogEntry):
    """Factors of the step time. Seconds for one step, layer, request or logit; efficiencies are
    the factor on the time that the data sheet implies, so 1.25 means 80 %.

    ``cached_prefill`` is the factor on the time of prompts of which all but a little is in the
    prefix cache: they arrive one by one between decode steps, which the model does not follow
    (fitted by measurements/conversations.py)."""

    step: Constant
    layer: Constant
    request: Constant
    weights: Constant
    cache: Constant
    compute: Constant
    grouped: Constant
    logits: Constant
    drafter: Constant
    drafter_layer: Constant
    prefill_layer: Constant
    cached_prefill: Constant
    uncaptured: Constant
    without_async: Constant
    nvlink_reduce: Constant
    pcie_reduce: Constant


class Ranges(CatalogEntry):
    """Half the width of a range as a share of the estimate: with evidence for the pair and the GPU,
    for one of them, for neither."""

    both: Share
    one: Share
    none: Share


class FittedTo(CatalogEntry):
    """An evidence file, and how many of its rows the constants were fitted to."""

    file: str
    pair: str
    gpu: str
    rows: Positive


class SpeedModel(CatalogEntry):
    """The performance model's constants and the GPUs. ``script`` fitted the constants to
    ``evidence`` on the day ``fitted``.

    ``decay``: the share of accepted drafts at a position over the previous one's, where a single
    acceptance length is known.
    """

    script: str
    fitted: date
    vllm: str
    evidence: tuple[FittedTo, ...]
    constants: StepConstants
    decay: Share
    ranges: Ranges
    gpus: tuple[GpuSpeed, ...]

    def gpu(self, name: str, gib: float = 0.0) -> GpuSpeed | None:
        """The GPU of this name, of its variants that with the memory nearest to ``gib``; ``None``
        if it is not in the table."""
        variants = [gpu for gpu in self.gpus if gpu.gpu == name]
        return min(variants, key=lambda gpu: abs((gpu.memory_gib or gib) - gib), default=None)
