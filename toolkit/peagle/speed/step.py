"""The time of one step of the engine, as a sum of terms with one constant each.

A decode step verifies ``n = requests x (K + 1)`` tokens and drafts the next K:

    time = step + layer x layers + request x requests + kernels
         + logits x bytes of logits / bandwidth
         + drafter + drafter_layer x layers of the drafter x passes + reduce x all-reduces

Kernels are the projections of the attention, the
experts (or the feed-forward block), the output matrix, the attention to the KV cache, and the
drafter's layers, output matrix and attention, once per pass: one pass with parallel drafting
(P-EAGLE, DFlash), K in sequence with EAGLE-3 and MTP. n tokens use ``E (1 - (1 - top/E)^n)`` of E
experts, as if each token chose its own: tokens next to each other in a text share some, so a real
step reads at most that. FLOPs are 2 per parameter and row, an expert's rows those of its tiles.
With tensor parallelism bytes and FLOPs are divided by its size; each layer adds two all-reduces,
each a latency and the ring's bytes over the link.

A prefill step has up to max-num-batched-tokens tokens of prompts: the same kernels for more tokens,
and the attention between them.

Kernels are launched by a CUDA graph or, in a batch beyond the largest one, by the CPU, which runs
ahead of the GPU: such a step takes the longer of the kernels' time and ``uncaptured``, whatever the
number of layers from 24 on (measured: about 70 ms with 24 as with 48 layers of short kernels, and
nothing compared with 36 layers of 2 ms or 60 of 3 ms), and less with fewer layers. For prompts
within the largest graph the CPU needs ``prefill_layer`` per layer, runs ahead of long kernels and
falls behind short ones, of which each layer has both: the root of the sum of the squares of both
times.

The other terms are those of vLLM 0.28.0 (v1/worker/gpu_model_runner.py, v1/spec_decode/eagle.py).

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
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from peagle.catalog.tables import GpuSpeed, SpeedModel, StepConstants
from peagle.speed.geometry import Geometry
from peagle.speed.models import Workload

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
    expected, tiles, likely = 0.0, 1, 1.0
    while likely > LEAST_LIKELY_TILE:
        likely = math.erfc((tiles * size + 0.5 - mean) / deviation / math.sqrt(2)) / 2
        expected += likely
        tiles += 1
    return expected


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
        read, compute = self.sides(constants)
        return read + compute if self.converts else max(read, compute)


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
        factors: dict[str, float] = defaultdict(float)
        for kernel, waits in zip(self.kernels, bounds, strict=True):
            if waits or kernel.converts:
                factors[kernel.reads_by] += kernel.read
            if not waits or kernel.converts:
                factors[kernel.computes_by] += kernel.compute
        return factors | {
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


_LOGIT_BYTES, _BF16 = 4, 2

_FEWEST_LAYERS = 24
"""Of the measured targets: ``uncaptured`` is in proportion below."""


def prefill_steps(requests: float, prompt: float, batched: int) -> tuple[float, float, float]:
    """The steps of the first prompt, those of the others, and the tokens of one of these.
    ``prompt`` counts the tokens that are not in the prefix cache."""
    first_steps = max(prompt / batched, 1.0)
    left = max(requests - 1, 0.0) * prompt
    steps = max(left / batched, min(requests - 1, 1.0), 0.0)
    return first_steps, steps, left / steps if steps else 0.0


def uncaptured_seconds(busy: float, layers: int, constants: StepConstants) -> float:
    """A step without a CUDA graph, whose kernels take ``busy`` seconds."""
    return max(busy, min(layers / _FEWEST_LAYERS, 1.0) * constants.uncaptured)


def launched(busy: float, layers: int, captured: bool, constants: StepConstants) -> float:
    """The seconds of prompts whose kernels take ``busy``, with the launch of the kernels;
    ``captured`` if a CUDA graph could hold so many tokens."""
    if captured:
        return math.hypot(busy, layers * constants.prefill_layer)
    return uncaptured_seconds(busy, layers, constants)


@dataclass(frozen=True)
class StepTimes:
    """A pair on GPUs: times of its steps, in seconds."""

    geometry: Geometry
    gpu: GpuSpeed
    model: SpeedModel

    @cached_property
    def bandwidth(self) -> float:
        """Bytes per second of all GPUs together."""
        return self.gpu.memory_gb_per_second * 1e9 * self.geometry.tensor_parallel_size

    @cached_property
    def peak(self) -> float:
        """FLOPs per second of all GPUs together, in the dtype of the target's weights."""
        rate = (self.gpu.fp8_tflops if self.geometry.low_precision else None) or self.gpu.tflops
        return rate * 1e12 * self.geometry.tensor_parallel_size

    def decode_terms(self, requests: float, context: float) -> Terms:
        """The terms of a step with this many requests of this mean length."""
        geo, draft = self.geometry, self.geometry.draft
        tokens = requests * (geo.k + 1)
        read = requests * sum(c.token_bytes * c.length(context) for c in geo.caches)
        kernels = [
            *self._layers(tokens),
            self._kernel(geo.lm_head_bytes, 2 * tokens * geo.vocab_size * geo.hidden_size),
            self._kernel(read, self._attention_flops(tokens, context), of_cache=True),
        ]
        logits, drafter_layers = tokens * geo.vocab_size, 0
        if draft:
            # The first pass has the verified tokens, and K-1 placeholders with parallel drafting.
            first = requests * (2 * geo.k if draft.parallel else geo.k + 1)
            later = requests * (draft.passes - 1)
            drafted = requests * geo.k
            read = draft.passes * requests
            read *= sum(c.token_bytes * c.length(context) for c in draft.caches)
            kernels += [
                self._kernel(draft.passes * draft.body_bytes, (first + later) * draft.body_bytes),
                self._kernel(draft.passes * draft.lm_head_bytes, drafted * draft.lm_head_bytes),
                self._kernel(read, 0.0, of_cache=True),
            ]
            logits += drafted * draft.vocab_size
            drafter_layers = draft.layers * draft.passes
        fixed = self._reduce_seconds(tokens) if geo.tensor_parallel_size > 1 else 0.0
        fixed += 0.0 if geo.schedules_ahead else self.model.constants.without_async
        return Terms(
            kernels=tuple(kernels),
            layer=geo.layers,
            request=requests,
            logits=logits * _LOGIT_BYTES / self.bandwidth,
            drafter=1 if draft else 0,
            drafter_layer=drafter_layers,
            fixed=fixed,
        )

    def _kernel(
        self,
        read: float,
        flops: float,
        *,
        grouped: bool = False,
        converts: bool = False,
        of_cache: bool = False,
    ) -> Kernel:
        return Kernel(read / self.bandwidth, flops / self.peak, grouped, converts, of_cache)

    def _layers(self, tokens: float) -> list[Kernel]:
        """The projections and the experts of all layers."""
        geo = self.geometry
        projections = self._kernel(
            geo.layers * geo.attention_bytes, 2 * tokens * geo.layers * geo.attention_numbers
        )
        active = geo.active_experts(tokens)
        if geo.converts_experts:
            share = geo.experts_per_token / geo.experts
            size = tile_size(tokens * share)
            loaded = active + geo.experts * further_tiles(tokens, share, size)
            computed = loaded * size
        else:
            rows = tokens * geo.experts_per_token / active
            loaded = active
            computed = active * (tile_rows(rows) if geo.experts > 1 else rows)
        experts = self._kernel(
            geo.layers * loaded * geo.expert_bytes,
            2 * computed * geo.layers * geo.expert_numbers,
            grouped=geo.experts > 1,
            converts=geo.converts_experts,
        )
        if geo.experts == 1:
            return [projections, experts]
        # Between the kernels: both halves of the first matrix' output, its activation and the
        # output are written and read.
        numbers = 2 * geo.hidden_size + 6 * geo.expert_numbers / (3 * geo.hidden_size)
        moved = tokens * geo.experts_per_token * numbers
        return [projections, experts, self._kernel(geo.layers * moved * _BF16, 0.0)]

    def _attention_flops(self, tokens: float, context: float) -> float:
        """The FLOPs of these tokens' attention to as many tokens before each."""
        caches = self.geometry.caches
        return tokens * sum(c.token_flops * c.length(context) for c in caches)

    def decode_seconds(self, requests: float, context: float) -> float:
        """One decode step."""
        seconds = self.decode_terms(requests, context).seconds(self.model.constants)
        if requests * (self.geometry.k + 1) <= self.geometry.captured:
            return seconds
        return uncaptured_seconds(seconds, self.geometry.layers, self.model.constants)

    def prefill_terms(self, tokens: float, workload: Workload) -> Terms:
        """The terms of a step with ``tokens`` of these prompts, without launches and the step's
        own time. Tokens of the prefix cache are attended to and read, not computed."""
        geo, cached = self.geometry, workload.cached_prompt_tokens
        attended = cached + workload.new_prompt_tokens / 2
        requests = tokens / workload.new_prompt_tokens
        kernels = [
            *self._layers(tokens),
            self._kernel(geo.lm_head_bytes, 0.0),
            self._kernel(0.0, self._attention_flops(tokens, attended)),
        ]
        if cached:
            read = requests * sum(c.token_bytes * c.length(cached) for c in geo.caches)
            kernels.append(self._kernel(read, 0.0, of_cache=True))
        if geo.draft:
            kernels.append(self._kernel(geo.draft.body_bytes, tokens * geo.draft.body_bytes))
        fixed = self._reduce_seconds(tokens) if geo.tensor_parallel_size > 1 else 0.0
        return Terms(tuple(kernels), step=0.0, fixed=fixed)

    def prefill_step_seconds(self, tokens: float, workload: Workload) -> float:
        """One step with ``tokens`` of these prompts."""
        geo, constants = self.geometry, self.model.constants
        busy = self.prefill_terms(tokens, workload).seconds(constants)
        return launched(busy, geo.layers, tokens <= geo.captured, constants) + constants.step

    def prefill_seconds(
        self, requests: float, workload: Workload, batched: int
    ) -> tuple[float, float]:
        """Until all prompts are processed, and on average until one is, when all are sent at once
        and a step takes up to ``batched`` tokens.

        The first request to arrive starts a step alone, and the others wait for it.
        """
        new = workload.new_prompt_tokens
        first_steps, steps, tokens = prefill_steps(requests, new, batched)
        first = first_steps * self.prefill_step_seconds(new / first_steps, workload)
        if not steps:
            return first, first
        step_seconds = self.prefill_step_seconds(tokens, workload)
        others = max(1 - 1 / requests, 0.0)
        waits = first_steps + max(steps, first_steps)
        return first + steps * step_seconds, first + others * step_seconds * waits / 2

    def _reduce_seconds(self, tokens: float) -> float:
        """The all-reduces of a step with this many tokens."""
        geo, constants = self.geometry, self.model.constants
        size = geo.tensor_parallel_size
        latency = constants.nvlink_reduce if self.gpu.link == "nvlink" else constants.pcie_reduce
        moved = 2 * (size - 1) / size * tokens * geo.hidden_size * 2
        all_reduce = latency + moved / (self.gpu.link_gb_per_second * 1e9)
        layers = geo.layers + (geo.draft.layers * geo.draft.passes if geo.draft else 0)
        return 2 * layers * all_reduce


class Timing(NamedTuple):
    """Seconds of a closed load: of all answers, to the first token, of a decode step."""

    total: float
    first: float
    step: float


def closed_load(
    engine: StepTimes,
    workload: Workload,
    load: float,
    running: float,
    batched: int,
    acceptance_length: float,
) -> Timing:
    """The times of ``load`` requests sent at once, of which at most ``running`` run together.

    ``batched`` is max-num-batched-tokens.
    """
    together = min(load, running)
    context = workload.prompt_tokens + workload.output_tokens / 2
    prompts, first = engine.prefill_seconds(together, workload, batched)
    slower = 1 + (engine.model.constants.cached_prefill - 1) * workload.cached_share
    prompts, first = prompts * slower, first * slower
    step = engine.decode_seconds(together, context)
    total = prompts + step * max(workload.output_tokens / acceptance_length - 1, 0)
    waves = max(load / running, 1.0)
    return Timing(total * waves, first + total * (waves - 1) / 2, step)
