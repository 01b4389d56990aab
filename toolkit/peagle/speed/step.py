"""The time of one step of the engine, as a sum of terms with one constant each.

A decode step verifies ``n = requests x (K + 1)`` tokens and drafts the next K:

    time = step + layer x layers + request x requests
         + weights x bytes of weights / bandwidth + cache x bytes of KV cache / bandwidth
         + compute x FLOPs / peak + logits x bytes of logits / bandwidth
         + drafter + drafter_layer x layers of the drafter x passes + reduce x all-reduces

Weights are those of the attention, of the active experts, of the output matrix, and of the drafter
once per pass: one pass with parallel drafting (P-EAGLE, DFlash), K in sequence with EAGLE-3 and
MTP. m independent tokens use ``E (1 - (1 - top/E)^m)`` of E experts; tokens of a request are
alike, so m is ``requests^request_exponent (K + 1)^token_exponent``. FLOPs are 2 per parameter and
token. With tensor parallelism bytes and FLOPs are divided by its size; each layer adds two
all-reduces, each a latency and the ring's bytes over the link. A batch beyond the largest CUDA
graph takes at least ``uncaptured_layer`` per layer, the time in which the CPU launches the kernels.

A prefill step has up to max-num-batched-tokens tokens of prompts: FLOPs of all layers and of the
attention between them (``prefill`` is the factor on the peak), the weights, and per layer
``prefill_layer`` or, beyond the largest CUDA graph, ``uncaptured_layer``.

The form is the roofline model (Williams, Waterman and Patterson, 2009) with the terms added
instead of the larger one taken, since kernels run one after the other; the step's terms are those
of vLLM 0.28.0 (v1/worker/gpu_model_runner.py, v1/spec_decode/eagle.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from peagle.catalog.speed_model import GpuSpeed, SpeedModel, StepConstants
from peagle.speed.geometry import Geometry
from peagle.speed.models import Workload

_LOGIT_BYTES = 4


@dataclass(frozen=True)
class Terms:
    """The terms of one step, each to be multiplied by the constant of the same name."""

    step: float = 0.0
    layer: float = 0.0
    request: float = 0.0
    weights: float = 0.0
    cache: float = 0.0
    compute: float = 0.0
    logits: float = 0.0
    drafter: float = 0.0
    drafter_layer: float = 0.0
    fixed: float = 0.0
    """Seconds with no constant to fit: all-reduces, and scheduling without overlap."""

    def seconds(self, constants: StepConstants) -> float:
        """The sum of the terms."""
        return (
            self.fixed
            + self.step * constants.step
            + self.layer * constants.layer
            + self.request * constants.request
            + self.weights * constants.weights
            + self.cache * constants.cache
            + self.compute * constants.compute
            + self.logits * constants.logits
            + self.drafter * constants.drafter
            + self.drafter_layer * constants.drafter_layer
        )


@dataclass(frozen=True)
class StepTimes:
    """A pair on GPUs: times of its steps, in seconds."""

    geometry: Geometry
    gpu: GpuSpeed
    model: SpeedModel

    @property
    def bandwidth(self) -> float:
        """Bytes per second of all GPUs together."""
        return self.gpu.memory_gb_per_second * 1e9 * self.geometry.tensor_parallel_size

    @property
    def peak(self) -> float:
        """FLOPs per second of all GPUs together, in the dtype of the target's weights."""
        rate = (self.gpu.fp8_tflops if self.geometry.low_precision else None) or self.gpu.tflops
        return rate * 1e12 * self.geometry.tensor_parallel_size

    def decode_terms(self, requests: float, context: float) -> Terms:
        """The terms of a step with this many requests of this mean length."""
        geo, draft = self.geometry, self.geometry.draft
        tokens = requests * (geo.k + 1)
        alike = requests**self.model.request_exponent * (geo.k + 1) ** self.model.token_exponent
        active = geo.active_experts(alike)
        weights = geo.layers * (geo.attention_bytes + active * geo.expert_bytes) + geo.lm_head_bytes
        lm_head_numbers = geo.vocab_size * geo.hidden_size
        flops = 2 * tokens * (geo.active_numbers + lm_head_numbers)
        cache = requests * sum(c.token_bytes * c.length(context) for c in geo.caches)
        flops += tokens * sum(c.token_flops * c.length(context) for c in geo.caches)
        logits, passed = tokens * geo.vocab_size, 0
        if draft:
            # The first pass has the verified tokens, and K-1 placeholders with parallel drafting.
            first = requests * (2 * geo.k if draft.parallel else geo.k + 1)
            later = requests * (draft.passes - 1)
            drafted = requests * geo.k
            weights += draft.passes * (draft.body_bytes + draft.lm_head_bytes)
            flops += (first + later) * draft.body_bytes + drafted * draft.lm_head_bytes
            read = sum(c.token_bytes * c.length(context) for c in draft.caches)
            cache += draft.passes * requests * read
            logits += drafted * draft.vocab_size
            passed = draft.layers * draft.passes
        fixed = self._reduce_seconds(tokens) if geo.tensor_parallel_size > 1 else 0.0
        fixed += 0.0 if geo.schedules_ahead else self.model.constants.without_async
        return Terms(
            step=1,
            layer=geo.layers,
            request=requests,
            weights=weights / self.bandwidth,
            cache=cache / self.bandwidth,
            compute=flops / self.peak,
            logits=logits * _LOGIT_BYTES / self.bandwidth,
            drafter=1 if draft else 0,
            drafter_layer=passed,
            fixed=fixed,
        )

    def decode_seconds(self, requests: float, context: float) -> float:
        """One decode step."""
        seconds = self.decode_terms(requests, context).seconds(self.model.constants)
        if requests * (self.geometry.k + 1) <= self.geometry.captured:
            return seconds
        return max(seconds, self._launch_seconds)

    @property
    def _launch_seconds(self) -> float:
        """The time in which the CPU launches the kernels of a step without a CUDA graph."""
        layers = self.geometry.layers + (self.geometry.draft.layers if self.geometry.draft else 0)
        return layers * self.model.constants.uncaptured_layer

    def prefill_terms(self, tokens: float, context: float) -> float:
        """The seconds at the data sheet's peak for ``tokens`` of prompts of length ``context``."""
        geo = self.geometry
        flops = 2 * tokens * geo.active_numbers
        flops += tokens * sum(c.token_flops * c.length(context / 2) for c in geo.caches)
        if geo.draft:
            flops += tokens * geo.draft.body_bytes
        return flops / self.peak

    def prefill_step_seconds(self, tokens: float, context: float) -> float:
        """One step with ``tokens`` of prompts of length ``context``."""
        geo, constants = self.geometry, self.model.constants
        active = geo.active_experts(tokens**self.model.request_exponent)
        weights = geo.layers * (geo.attention_bytes + active * geo.expert_bytes) + geo.lm_head_bytes
        busy = self.prefill_terms(tokens, context) * constants.prefill
        busy += constants.weights * weights / self.bandwidth
        if geo.tensor_parallel_size > 1:
            busy += self._reduce_seconds(tokens)
        captured = tokens <= geo.captured
        launch = geo.layers * constants.prefill_layer if captured else self._launch_seconds
        return busy + launch + constants.step

    def prefill_seconds(self, requests: float, prompt: float, batched: int) -> tuple[float, float]:
        """Until all prompts are processed, and on average until one is, when all are sent at once
        and a step takes up to ``batched`` tokens."""
        tokens = requests * prompt
        steps = max(tokens / batched, 1.0)
        one = self.prefill_step_seconds(tokens / steps, prompt)
        return steps * one, one * (steps + 1) / 2

    def _reduce_seconds(self, tokens: float) -> float:
        """The all-reduces of a step with this many tokens."""
        geo, constants = self.geometry, self.model.constants
        size = geo.tensor_parallel_size
        latency = constants.nvlink_reduce if self.gpu.link == "nvlink" else constants.pcie_reduce
        moved = 2 * (size - 1) / size * tokens * geo.hidden_size * 2
        one = latency + moved / (self.gpu.link_gb_per_second * 1e9)
        layers = geo.layers + (geo.draft.layers * geo.draft.passes if geo.draft else 0)
        return 2 * layers * one


@dataclass(frozen=True)
class Timing:
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
    prompts, first = engine.prefill_seconds(together, workload.prompt_tokens, batched)
    step = engine.decode_seconds(together, context)
    total = prompts + step * max(workload.output_tokens / acceptance_length - 1, 0)
    waves = max(load / running, 1.0)
    return Timing(total * waves, first + total * (waves - 1) / 2, step)
