"""The time of one step of the engine, as a sum of terms with one constant each, from the sizes of
the memory fit.

A decode step verifies ``n = requests x (K + 1)`` tokens and drafts the next K:

    time = step + layer x layers + request x requests + kernels
         + logits x bytes of logits / bandwidth
         + drafter + drafter_pass x passes of the drafter + reduce x all-reduces

Kernels are the projections of the attention, the experts (or the feed-forward block), the output
matrix, the attention to the KV cache, and the drafter's layers, output matrix and attention, once
per pass: one pass with parallel drafting, K in sequence with EAGLE-3 and MTP. FLOPs are 2 per
parameter and row. n tokens use ``E (1 - (1 - top/E)^n)`` of E experts, as if each token chose its
own; those next to each other share some, so a real step reads at most that. With tensor parallelism
bytes and FLOPs are divided by its size; each layer adds two all-reduces, each a latency and the
ring's bytes over the link. A prefill step has the same kernels for up to max-num-batched-tokens
tokens of prompts, and the attention between them.

Kernels are launched by a CUDA graph or, in a batch beyond the largest one, by the CPU, which runs
ahead of the GPU: such a step takes the longer of the kernels' time and ``uncaptured``, or
``prefill_uncaptured`` for a step of prompts, which no earlier step overlaps; with fewer than 24
layers less (measured: about 70 ms with 24 as with 48). For prompts within the largest graph the CPU
needs ``prefill_layer`` per layer, runs ahead of long kernels and falls behind short ones, of which
each layer has both: the root of the sum of the squares of both times.

A kernel reads bytes and computes FLOPs. Loads and tensor cores run side by side, so that it takes

    max(weights x bytes / bandwidth, compute x FLOPs / peak)

with ``cache`` in place of ``weights`` where it reads the KV cache, and ``grouped`` in place of
``compute`` where it multiplies one small matrix for each expert: the roofline of Williams, Waterman
and Patterson (2009). One that converts MXFP4 weights to 16 bits in software does so with the
threads that issue its matrix instructions, for each tile, in the time of ``converted`` rows more:
an H100 takes 4.8 microseconds for a tile of 16 rows of an expert of GPT-OSS-20B and 13 for one of
128, as an H200 with 43 % more bandwidth does.

With a prefix cache the CPU hashes each block of a prompt, one prompt after the other (``hashed``
seconds per token). It is counted where a part of the prompts is cached: the others were measured
without a prefix cache.

The next turn of a conversation arrives when its last answer ends. The CPU reads the text
(``tokenized`` seconds per token) and hashes one prompt after the other. It finds each of the other
``C - 1`` conversations there as often as that is a share of the time of a turn, ``T`` of which the
engine takes, as if it were not there (mean value analysis of closed networks, Reiser and Lavenberg
1980, in Bard's approximation):

    R = cpu + (C - 1) R / (R + T) cpu

Half of the engine's step is to go then, and the next one is in the queue already where vLLM
schedules ahead (step_with_batch_queue in v1/engine/core.py); the prompt's own comes after it. The
steps before it also process another prompt as often as prompts are a share of ``T``. Without drafts
all do: answers of equal length end in the order in which their prompts were processed.

Requests sent at once end with the slowest, whose steps accept the fewest drafts, in a small batch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import NamedTuple

from peagle.catalog.schema import AttentionGroup
from peagle.catalog.tables import GpuSpeed, SpeedModel, StepConstants
from peagle.fit.estimate import FitCase
from peagle.fit.weights import (
    QUANTIZED_BYTES,
    DraftModel,
    TargetModel,
    attention_layers,
    attention_parameters,
    quantized_element,
    stored_parameters,
)
from peagle.speed.acceptance import curve_through, position_rates
from peagle.vllm.defaults import cache_element_bytes, capture_limit, schedules_ahead
from peagle.vllm.gpus import element_bytes
from peagle.workload import Workload

_LOGIT_BYTES, _BF16 = 4, 2

_REDUCED_VOCABULARY = 64_000
"""Tokens that an EAGLE-3 head drafts from when its config.json was not read: 32,000 to 64,000 in
the published ones."""

_FEWEST_LAYERS = 24
"""The fewest layers of the measured targets: ``uncaptured`` is in proportion below."""

_SMALLEST_TILE, _LARGEST_TILE = 16, 128
_LEAST_LIKELY_TILE = 1e-3
"""Tiles that are less likely than this do not count."""


class Cache(NamedTuple):
    """Layers with the same KV cache: bytes that a token takes in all of them, and the FLOPs of a
    token's attention to one cached token. ``window`` is in tokens."""

    token_bytes: float
    token_flops: float
    window: int | None

    def length(self, context: float) -> float:
        """Tokens that these layers read at this context."""
        return min(context, self.window) if self.window else context


class Draft(NamedTuple):
    """A drafter: bytes of its layers and of its output matrix in each of ``passes`` per step, one
    if ``parallel``. ``placeholders``: the pass has K-1 of them beside the verified tokens."""

    layers: int
    passes: int
    parallel: bool
    placeholders: bool
    body_bytes: float
    lm_head_bytes: float
    vocab_size: int
    caches: tuple[Cache, ...]


class Geometry(NamedTuple):
    """The sizes of a pair on an engine. ``attention`` is everything of a layer but its experts, a
    dense layer has one expert; ``_numbers`` are parameters, ``_bytes`` bytes. ``converts_experts``:
    kernels convert the weights of the experts to 16 bits. The largest batch with a CUDA graph has
    ``most_captured`` tokens, and those of ``captured_requests``."""

    layers: int
    hidden_size: int
    vocab_size: int
    attention_bytes: float
    attention_numbers: float
    expert_bytes: float
    expert_numbers: float
    experts: int
    experts_per_token: int
    lm_head_bytes: float
    caches: tuple[Cache, ...]
    draft: Draft | None
    k: int
    tensor_parallel_size: int
    most_captured: int
    captured_requests: int
    schedules_ahead: bool
    low_precision: bool
    converts_experts: bool

    @property
    def captured(self) -> int:
        """The tokens of the largest batch with a CUDA graph."""
        return min(self.most_captured, self.captured_requests * (self.k + 1))

    def holds(self, requests: float) -> bool:
        """Whether a step of so many requests has a CUDA graph."""
        return requests * (self.k + 1) <= self.captured

    def with_graphs(self, tokens: int, requests: int) -> Geometry:
        """The same with CUDA graphs for batches up to so many tokens, of so many requests."""
        return self._replace(most_captured=tokens, captured_requests=requests)

    def with_k(self, k: int) -> Geometry:
        """The same pair with K drafts; the target alone with 0."""
        draft = self.draft if k else None
        if draft and not draft.parallel:
            draft = draft._replace(passes=k)
        return self._replace(k=k, draft=draft)


def read_geometry(case: FitCase) -> Geometry:
    """The geometry of a case; sizes are of the whole model, not of one GPU."""
    target, engine, shape = case.target, case.engine, case.target.architecture
    # Parameters that every token uses: attention, recurrent layers, dense layers, shared experts.
    always = sum(
        n * sum(attention_parameters(shape, group)) for group, n in attention_layers(shape)
    )
    always += sum(group.layers * group.parameters for group in shape.recurrent)
    width = shape.dense_layers * (shape.dense_intermediate_size or 0)
    width += (shape.blocks - shape.dense_layers) * (shape.shared_expert_size or 0)
    always += shape.feed_forward_matrices * shape.hidden_size * width
    attention, experts, head = _element_sizes(target, always)
    mean = always / shape.layers
    router = (shape.experts or 0) * shape.hidden_size
    matrices = shape.feed_forward_matrices * (shape.blocks - shape.dense_layers) / shape.layers
    numbers = matrices * shape.hidden_size * shape.intermediate_size
    element = cache_element_bytes(engine, target.dtype)
    captured, captured_requests = capture_limit(engine, shape.class_name)
    return Geometry(
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
        attention_bytes=mean * attention + router * _BF16,
        attention_numbers=mean + router,
        expert_bytes=numbers * experts,
        expert_numbers=numbers,
        experts=shape.experts or 1,
        experts_per_token=(shape.experts_per_token or 1) if shape.experts else 1,
        lm_head_bytes=shape.vocab_size * shape.hidden_size * head,
        caches=_caches(shape.attention, shape.query_heads, element),
        draft=_draft(case.drafter, engine.k, element) if case.drafter else None,
        k=engine.k,
        tensor_parallel_size=engine.tensor_parallel_size,
        most_captured=captured,
        captured_requests=captured_requests,
        schedules_ahead=schedules_ahead(engine, case.drafter),
        low_precision=target.quantization in ("fp8", "nvfp4"),
        converts_experts=target.has_mxfp4_experts,
    )


def _element_sizes(target: TargetModel, always: float) -> tuple[float, float, float]:
    """Bytes per element of attention, experts (or feed-forward block) and output matrix; ``always``
    is the number of parameters beside the experts."""
    plain, shape = element_bytes(target.dtype), target.architecture
    quantized = shape.quantized
    if target.quantization is None and quantized is None:
        return plain, plain, plain
    if target.is_gpt_oss:
        return plain, QUANTIZED_BYTES.get(target.quantization or "", plain), plain
    if quantized and not quantized.attention:
        return plain, quantized.element_bytes, plain
    size = quantized_element(target)
    if size is None and target.checkpoint_bytes:
        # Known from the weight files only: the vocabulary is usually not quantized.
        vocabulary = shape.vocab_size * shape.hidden_size * (1 if shape.tied_embeddings else 2)
        block = 3 * shape.hidden_size * shape.intermediate_size * (shape.experts or 1)
        left = max(target.checkpoint_bytes - vocabulary * plain, 0)
        size = min(max(left / (always + shape.layers * block), 0.25), plain)
    return size or plain, size or plain, plain


def _caches(groups: Iterable[AttentionGroup], heads: int, element: float) -> tuple[Cache, ...]:
    return tuple(
        Cache(
            (1.0 if group.kind == "latent" else 2.0)
            * (group.layers * group.kv_heads * group.head_dim * element),
            4.0 * group.layers * heads * group.head_dim,
            group.window if group.kind == "sliding" else None,
        )
        for group in groups
    )


@lru_cache(maxsize=256)
def _draft(drafter: DraftModel, k: int, element: float) -> Draft:
    parallel = drafter.parallel_drafting or drafter.method in ("dflash", "dspark")
    shape, rows = drafter.shape, drafter.draft_vocab_size
    if drafter.method == "eagle3" and not parallel and rows == shape.vocab_size:
        rows = min(rows, _REDUCED_VOCABULARY)
    body = _BF16 * stored_parameters(drafter._replace(own_embeddings=False, own_output=False))
    head = _BF16 * rows * shape.hidden_size
    if drafter.method == "mtp" and drafter.checkpoint_bytes:
        body, head = drafter.checkpoint_bytes, 0  # a smaller hidden size than the target's
    return Draft(
        layers=shape.layers,
        passes=1 if parallel else max(k, 1),
        parallel=parallel,
        placeholders=drafter.parallel_drafting,
        body_bytes=float(body),
        lm_head_bytes=float(head),
        vocab_size=rows,
        caches=_caches(shape.attention, shape.query_heads, element),
    )


def tile_size(rows: float, converts: bool) -> int:
    """The rows of a tile for experts with this many rows on average, a power of two from 16 to 128.
    Kernels that convert MXFP4 weights take the next one (triton_kernels/matmul_ogs_details/
    opt_flags.py of vLLM 0.28.0), others the nearest to twice as many, so that few experts need a
    second tile (fused_moe/configs/E=128,N=768,device_name=NVIDIA_H200.json)."""
    least = math.floor(rows) if converts else math.ceil(rows / 0.75)
    return min(max(_SMALLEST_TILE, 1 << (max(least, 1) - 1).bit_length()), _LARGEST_TILE)


def further_tiles(tokens: float, share: float, size: int) -> float:
    """The tiles of ``size`` rows that an expert needs beyond its first, on average. Each of the
    tokens chooses the expert with probability ``share``, so the number of its rows is binomial, of
    which this takes the normal approximation."""
    mean = tokens * share
    deviation = max(math.sqrt(mean * (1 - share)), 1e-6)
    expected, tiles, likely = 0.0, 1, 1.0
    while likely > _LEAST_LIKELY_TILE:
        likely = math.erfc((tiles * size + 0.5 - mean) / deviation / math.sqrt(2)) / 2
        expected += likely
        tiles += 1
    return expected


class Kernel(NamedTuple):
    """Kernels of one kind: seconds of their bytes at the data sheet's bandwidth, and of their FLOPs
    at its peak. ``grouped``: one matrix multiplication for each expert; ``convert``: seconds of the
    FLOPs of one row, for kernels that convert the weights that they load."""

    read: float
    compute: float
    grouped: bool = False
    convert: float = 0.0
    of_cache: bool = False

    def sides(self, constants: StepConstants) -> tuple[float, float]:
        """The times of its bytes and of its FLOPs."""
        reads = constants.cache if self.of_cache else constants.weights
        computes = constants.grouped if self.grouped else constants.compute
        return reads * self.read, computes * self.compute + constants.converted * self.convert


class Terms(NamedTuple):
    """The terms of one step: kernels, and times to be multiplied by the constant of that name."""

    kernels: tuple[Kernel, ...]
    step: float = 1.0
    layer: float = 0.0
    request: float = 0.0
    logits: float = 0.0
    drafter: float = 0.0
    drafter_pass: float = 0.0
    fixed: float = 0.0
    """Seconds with no constant to fit: all-reduces, and scheduling without overlap."""

    def seconds(self, constants: StepConstants) -> float:
        """The sum of the terms."""
        busy = 0.0
        for kernel in self.kernels:
            busy += max(kernel.sides(constants))
        return (
            self.fixed
            + busy
            + self.step * constants.step
            + self.layer * constants.layer
            + self.request * constants.request
            + self.logits * constants.logits
            + self.drafter * constants.drafter
            + self.drafter_pass * constants.drafter_pass
        )


def prefill_steps(requests: float, prompt: float, batched: int) -> tuple[float, float, float]:
    """The steps of the first prompt, those of the others, and the tokens of one of these.
    ``prompt`` counts the tokens that are not in the prefix cache."""
    first_steps = max(prompt / batched, 1.0)
    left = max(requests - 1, 0.0) * prompt
    steps = max(left / batched, min(requests - 1, 1.0), 0.0)
    return first_steps, steps, left / steps if steps else 0.0


def uncaptured_seconds(busy: float, layers: int, launch: float) -> float:
    """A step without a CUDA graph, whose kernels take ``busy`` seconds; their launch takes
    ``launch`` in a target with enough layers."""
    return max(busy, min(layers / _FEWEST_LAYERS, 1.0) * launch)


def launched(busy: float, layers: int, captured: bool, constants: StepConstants) -> float:
    """The seconds of prompts whose kernels take ``busy``, with the launch of the kernels;
    ``captured`` if a CUDA graph could hold so many tokens."""
    if captured:
        return math.hypot(busy, layers * constants.prefill_layer)
    return uncaptured_seconds(busy, layers, constants.prefill_uncaptured)


@dataclass(frozen=True)
class StepTimes:
    """A pair on GPUs: times of its steps, in seconds."""

    geometry: Geometry
    gpu: GpuSpeed
    model: SpeedModel

    @cached_property
    def rates(self) -> tuple[float, float]:
        """Bytes and FLOPs per second of all GPUs together, in the dtype of the target's weights."""
        gpu, size = self.gpu, self.geometry.tensor_parallel_size
        tflops = (gpu.fp8_tflops if self.geometry.low_precision else None) or gpu.tflops
        return gpu.memory_gb_per_second * 1e9 * size, tflops * 1e12 * size

    def decode_terms(self, requests: float, context: float) -> Terms:
        """The terms of a step with this many requests of this mean length."""
        geo, draft, (bandwidth, peak) = self.geometry, self.geometry.draft, self.rates
        tokens = requests * (geo.k + 1)
        read = requests * sum(c.token_bytes * c.length(context) for c in geo.caches)
        attention = tokens * sum(c.token_flops * c.length(context) for c in geo.caches)
        kernels = [
            *self._layers(tokens),
            Kernel(
                geo.lm_head_bytes / bandwidth, 2 * tokens * geo.vocab_size * geo.hidden_size / peak
            ),
            Kernel(read / bandwidth, attention / peak, of_cache=True),
        ]
        logits = tokens * geo.vocab_size
        if draft:
            # The first pass has the verified tokens or, of DFlash, the last one and K placeholders.
            first = requests * (geo.k + 1 + (geo.k - 1) * draft.placeholders)
            later = requests * (draft.passes - 1)
            drafted = requests * geo.k
            read = draft.passes * requests
            read *= sum(c.token_bytes * c.length(context) for c in draft.caches)
            body, head = draft.body_bytes, draft.lm_head_bytes
            kernels += [
                Kernel(draft.passes * body / bandwidth, (first + later) * body / peak),
                Kernel(draft.passes * head / bandwidth, drafted * head / peak),
                Kernel(read / bandwidth, 0.0, of_cache=True),
            ]
            logits += drafted * draft.vocab_size
        fixed = self._reduce_seconds(tokens)
        fixed += 0.0 if geo.schedules_ahead else self.model.constants.without_async
        return Terms(
            kernels=tuple(kernels),
            layer=geo.layers,
            request=requests,
            logits=logits * _LOGIT_BYTES / bandwidth,
            drafter=1 if draft else 0,
            drafter_pass=draft.passes if draft else 0,
            fixed=fixed,
        )

    def _layers(self, tokens: float) -> list[Kernel]:
        """The projections and the experts of all layers."""
        geo, (bandwidth, peak) = self.geometry, self.rates
        projections = Kernel(
            geo.layers * geo.attention_bytes / bandwidth,
            2 * tokens * geo.layers * geo.attention_numbers / peak,
        )
        # The expected number of a layer's experts that so many independent tokens use.
        untouched: float = (1 - geo.experts_per_token / geo.experts) ** max(tokens, 1)
        active = geo.experts * (1 - untouched)
        loaded, computed = active, tokens
        if geo.experts > 1:
            share = geo.experts_per_token / geo.experts
            size = tile_size(tokens * share, geo.converts_experts)
            tiles = active + geo.experts * further_tiles(tokens, share, size)
            loaded, computed = tiles if geo.converts_experts else active, tiles * size
        experts = Kernel(
            geo.layers * loaded * geo.expert_bytes / bandwidth,
            2 * computed * geo.layers * geo.expert_numbers / peak,
            grouped=geo.experts > 1 and not geo.converts_experts,
            convert=2 * loaded * geo.layers * geo.expert_numbers / peak * geo.converts_experts,
        )
        if geo.experts == 1:
            return [projections, experts]
        # Between the kernels: both halves of the first matrix' output, its activation and the
        # output are written and read.
        numbers = 2 * geo.hidden_size + 6 * geo.expert_numbers / (3 * geo.hidden_size)
        moved = tokens * geo.experts_per_token * numbers
        return [projections, experts, Kernel(geo.layers * moved * _BF16 / bandwidth, 0.0)]

    def decode_seconds(self, requests: float, context: float) -> float:
        """One decode step."""
        seconds = self.decode_terms(requests, context).seconds(self.model.constants)
        if self.geometry.holds(requests):
            return seconds
        launch = self.model.constants.uncaptured
        return uncaptured_seconds(seconds, self.geometry.layers, launch)

    def prefill_terms(self, tokens: float, workload: Workload) -> Terms:
        """The terms of a step with ``tokens`` of these prompts, without launches and the step's
        own time. Tokens of the prefix cache are attended to and read, not computed."""
        geo, cached, (bandwidth, peak) = self.geometry, workload.cached_prompt_tokens, self.rates
        attended = cached + workload.new_prompt_tokens / 2
        attention = tokens * sum(c.token_flops * c.length(attended) for c in geo.caches)
        kernels = [
            *self._layers(tokens),
            Kernel(geo.lm_head_bytes / bandwidth, 0.0),
            Kernel(0.0, attention / peak),
        ]
        if cached:
            requests = tokens / workload.new_prompt_tokens
            read = requests * sum(c.token_bytes * c.length(cached) for c in geo.caches)
            kernels.append(Kernel(read / bandwidth, 0.0, of_cache=True))
        if geo.draft:
            body = geo.draft.body_bytes
            kernels.append(Kernel(body / bandwidth, tokens * body / peak))
        return Terms(tuple(kernels), step=0.0, fixed=self._reduce_seconds(tokens))

    def prefill_step_seconds(self, tokens: float, workload: Workload) -> float:
        """One step with ``tokens`` of these prompts."""
        geo, constants = self.geometry, self.model.constants
        busy = self.prefill_terms(tokens, workload).seconds(constants)
        return launched(busy, geo.layers, tokens <= geo.captured, constants) + constants.step

    def prefill_seconds(
        self, requests: float, workload: Workload, batched: int
    ) -> tuple[float, float]:
        """Until all prompts are processed, and on average until one is, when all are sent at once
        and a step takes up to ``batched`` tokens. The first request to arrive starts a step alone,
        and the others wait for it."""
        new = workload.new_prompt_tokens
        first_steps, steps, tokens = prefill_steps(requests, new, batched)
        first = first_steps * self.prefill_step_seconds(new / first_steps, workload)
        step_seconds = self.prefill_step_seconds(tokens, workload)
        others = max(1 - 1 / requests, 0.0)
        waits = first_steps + max(steps, first_steps)
        return first + steps * step_seconds, first + others * step_seconds * waits / 2

    def _reduce_seconds(self, tokens: float) -> float:
        """The all-reduces of a step with this many tokens."""
        geo, constants = self.geometry, self.model.constants
        size = geo.tensor_parallel_size
        if size == 1:
            return 0.0
        latency = constants.nvlink_reduce if self.gpu.link == "nvlink" else constants.pcie_reduce
        moved = 2 * (size - 1) / size * tokens * geo.hidden_size * 2
        all_reduce = latency + moved / (self.gpu.link_gb_per_second * 1e9)
        layers = geo.layers + (geo.draft.layers * geo.draft.passes if geo.draft else 0)
        return 2 * layers * all_reduce


class Timing(NamedTuple):
    """Seconds of a closed load: of all answers, to the first token, of a decode step, and of
    ``total`` those in which only the requests with the fewest accepted drafts still run."""

    total: float
    first: float
    step: float
    tail: float = 0.0

    @property
    def decode(self) -> float:
        """From the first token to the last of a mean answer, at least a step."""
        return max(self.total - self.tail - self.first, self.step)


def closed_load(
    engine: StepTimes,
    workload: Workload,
    load: float,
    running: float,
    batched: int,
    acceptance_length: float,
    at_once: bool = True,
) -> Timing:
    """The times of ``load`` requests of which at most ``running`` run together: sent at once, or as
    the turns of as many conversations. ``batched`` is max-num-batched-tokens."""
    together, constants = min(load, running), engine.model.constants
    context = workload.prompt_tokens + workload.output_tokens / 2
    prompts, first = engine.prefill_seconds(together, workload, batched)
    hashing = constants.hashed * workload.prompt_tokens if workload.cached_prompt_tokens else 0.0
    prompts, first = prompts + together * hashing, first + (together + 1) / 2 * hashing
    step = engine.decode_seconds(together, context)
    total = prompts + step * max(workload.output_tokens / acceptance_length - 1, 0)
    waves = max(load / running, 1.0)
    if at_once:
        k, tokens, decay = engine.geometry.k, workload.output_tokens, engine.model.decay
        more_steps = _steps_of_slowest(together, tokens, k, acceptance_length, decay)
        tail = more_steps * engine.decode_seconds(max(together / 4, 1.0), context)
        return Timing(total * waves + tail, first + total * (waves - 1) / 2, step, tail)
    cpu = hashing + constants.tokenized * workload.prompt_tokens
    more = together * cpu - total
    read = (more + math.sqrt(more**2 + 4 * cpu * total)) / 2
    decode = step if together > 1 else 0.0
    prompt = max(engine.prefill_seconds(1, workload, batched)[0], decode)
    others = max(together - 1, 0.0) * (prompt / total if engine.geometry.k else 1.0)
    before = decode + min(others, 1.0) * (prompt - decode)
    first = read + (1.5 if engine.geometry.schedules_ahead else 0.5) * before + prompt
    return Timing(total * waves, first + total * (waves - 1), step)


@lru_cache(maxsize=4096)
def _steps_of_slowest(requests: float, tokens: int, k: int, length: float, decay: float) -> float:
    """How many steps more than the mean request the slowest of some needs for its tokens: a step's
    accepted drafts differ by chance. The deviation of a renewal process, and the expected maximum
    of that many normal values (Blom 1958, Statistical Estimates and Transformed Beta-Variables)."""
    if requests <= 1 or length <= 1 or not k:
        return 0.0
    rates = position_rates(curve_through(((k, length),), decay), k)
    squares = sum((2 * position + 1) * rate for position, rate in enumerate(rates))
    deviation = math.sqrt(max(squares - sum(rates) ** 2, 0.0) * tokens / length**3)
    return deviation * NormalDist().inv_cdf((requests - 0.375) / (requests + 0.25))
