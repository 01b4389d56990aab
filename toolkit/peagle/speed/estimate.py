"""The performance of one engine at one load: measured, else estimated, else unknown.

A closed load of N requests is sent at once, as the evidence was measured, and as a client with N
connections begins; turns of conversations arrive one by one (``peagle.speed.step``). With t(P, N)
the time of all prompts and s(N, context) that of a decode step:

    time of all answers = t + s x output tokens / acceptance length
    tokens/s            = N x output tokens / time
    TTFT                = until a request's prompt is processed, on average
    ITL                 = (time - TTFT) / steps

More requests than max-num-seqs, or than the KV cache holds, wait: tokens/s stay those of the
requests that run, and TTFT grows by the wait. Of a prompt, only what the prefix cache does not hold
is processed (``on_engine``).

A row on the same GPUs, vLLM and request size at this load is the answer itself, and between two
loads the model's curve through their rows is, if the steps of both have a CUDA graph, or neither's.
Other rows of the target, of this or an adjacent
vLLM version, correct the estimate by the weighted geometric mean of their measured over modelled
time, with a ratio of 1 as one row more. A row weighs less the further its load, K and request size
are, on the other side of the largest CUDA graph, and on other GPUs; for a drafter without rows
those of the target alone count, with little weight.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar

from peagle.catalog.schema import Speed, SpeedRun
from peagle.catalog.tables import SpeedModel
from peagle.fit.estimate import GIB, Fit, FitCase, cache_layout, compute_fit
from peagle.speed.acceptance import TARGET_ALONE, Acceptance, AcceptanceBasis, Performance, is_on
from peagle.speed.step import Geometry, StepTimes, Timing, closed_load, read_geometry
from peagle.vllm import versions
from peagle.vllm.defaults import BLOCK_TOKENS, cached_tokens, capture_limit
from peagle.workload import Workload

T = TypeVar("T")

SAME_SIZE = 1.1
"""Requests whose tokens differ by at most this factor are of the measured size, as are acceptance
lengths."""

MEASURED_STEP = 8192
"""max-num-batched-tokens of the measured engines."""

_UNMEASURED_WIDTH = 0.5
"""Half the range for kinds of attention of which no GPU measurement went into the model."""

_PRIOR = 0.5
"""Weight of a ratio of 1."""

_OTHER_GPU, _ALONE = 0.3, 0.1
"""Weights of rows of another GPU, and of the target alone for a drafter."""

_LOAD, _K, _PROMPT, _ANSWER = math.log(2.5), 2.5, math.log(5), math.log(12)
"""Distances at which a weight falls to 1/e: held-out settings and request sizes have the smallest
errors around these, and hardly larger ones at half and twice of them."""

_CACHED, _EDGE = 0.5, 2.0
"""The same for the cached share of a prompt, and the distance between a step with a CUDA graph and
one without, of which the CPU determines the time."""

MEASURED_REQUESTS = 128
"""max-num-seqs of the measured engines, up to which vLLM captures graphs by default."""


def performance(
    case: FitCase,
    workload: Workload,
    load: float,
    acceptance: Acceptance,
    model: SpeedModel,
    runs: Sequence[SpeedRun] = (),
    names: Collection[str | None] = TARGET_ALONE,
    *,
    fit: Fit | None = None,
    geometry: Geometry | None = None,
    engines: int = 1,
    at_once: bool | None = None,
) -> Performance:
    """The performance of one engine with ``load`` concurrent requests of this size. ``runs`` are
    the target's on any GPU and vLLM version; ``names`` are those of the drafter in them.
    ``engines`` share the requests of all conversations, whose turns arrive one by one unless they
    are sent ``at_once``. The basis is ``unknown`` without an
    acceptance length, on a GPU that speed_model.yaml does not have, and where no request fits the
    context or the KV cache."""
    engine, shape = case.engine, case.target.architecture
    if workload.tokens > engine.max_model_len:
        context = f"the context of {engine.max_model_len:,}"
        lacking = f"requests of {workload.tokens:,} tokens exceed {context}"
        return Performance("unknown", acceptance, lacking)
    conversations: int | None = None
    at_once = not workload.cached_prompt_tokens if at_once is None else at_once
    if workload.cached_prompt_tokens:
        fit = fit or compute_fit(case)
        conversations = int(cached_requests(case, fit, workload))
        workload = on_engine(case, fit, workload, load, engines)
    geometry = geometry or read_geometry(case)
    default = engine._replace(max_cudagraph_capture_size=None, max_num_seqs=MEASURED_REQUESTS)
    graphs = capture_limit(default, shape.class_name)
    measured = _measured(
        case, workload, load, runs, names, acceptance, geometry, model, graphs, at_once
    )
    if measured is not None:
        return measured
    gpu = model.gpu(engine.gpu, engine.gpu_memory_gib)
    if acceptance.basis == "unknown" or gpu is None:
        lacking = acceptance.source if gpu else f"no data of the GPU {engine.gpu}"
        return Performance("unknown", acceptance, lacking)
    running = slots(case, fit or compute_fit(case), workload)
    if running < 1:
        return Performance("unknown", acceptance, "no request of this size fits the KV cache")
    times = StepTimes(geometry, gpu, model)
    batched = engine.max_num_batched_tokens
    timing = closed_load(times, workload, load, running, batched, acceptance.length, at_once)
    factor, width, used = _correction(times, workload, load, engine.vllm, runs, names, graphs)
    if shape.latent or shape.recurrent or shape.unknown_cache:
        width = max(width, _UNMEASURED_WIDTH)
    source = f"{model.script}, constants of {model.fitted.isoformat()}"
    if used:
        by = [
            run.file
            if versions.compare(run.vllm, engine.vllm) == 0
            else f"{run.file} (vLLM {run.vllm})"
            for run in used
        ]
        source += f", corrected by {', '.join(by)}"
    steps = workload.output_tokens / acceptance.length
    total, first = timing.total * factor, timing.first * factor
    tokens = load * workload.output_tokens / total
    itl = factor * (timing.decode / steps if load <= running else timing.step)
    return Performance(
        basis="estimated",
        acceptance=acceptance,
        source=source,
        tokens_per_second=tokens,
        low=tokens * (1 - width),
        high=tokens * (1 + width),
        ttft_seconds=first,
        itl_seconds=itl,
        cached_prompt_tokens=workload.cached_prompt_tokens,
        conversations=conversations,
        extrapolated=acceptance.extrapolated,
    )


def break_even_length(
    drafting: Performance, alone: Performance, workload: Workload, load: float
) -> float | None:
    """The acceptance length above which speculation is faster than the target alone: at least 1;
    ``None`` if unknown, or if no length suffices. A request takes ``load * output tokens / tokens
    per second``. Of that only the time after the first token shrinks with the acceptance length, in
    proportion to it."""
    if not drafting.tokens_per_second or not alone.tokens_per_second:
        return None
    first = drafting.ttft_seconds or 0.0
    taken = load * workload.output_tokens / drafting.tokens_per_second - first
    allowed = load * workload.output_tokens / alone.tokens_per_second - first
    if taken <= 0 or allowed <= 0:
        return None
    return max(1.0, drafting.acceptance.length * taken / allowed)


def slots(case: FitCase, fit: Fit, workload: Workload) -> float:
    """Requests of this size that run at the same time: limited by max-num-seqs and KV cache."""
    return min(case.engine.max_num_seqs, cached_requests(case, fit, workload))


def cached_requests(case: FitCase, fit: Fit, workload: Workload) -> float:
    """Requests of this size that the KV cache holds, running or kept for the next turn, with one
    copy of what all prompts begin with."""
    layout = cache_layout(case)
    # Of all requests together one step's prompts are in flight, not of each: about none each.
    each = layout.request_blocks(min(workload.tokens, case.engine.max_model_len), 0)
    shared = 0
    if case.engine.prefix_caching:
        shared = layout.shared_blocks(workload.shared_prompt_tokens)
    blocks = int(fit.kv_cache_gib * GIB) // layout.block_bytes
    return max(blocks - shared, 0) / (each - shared)


def on_engine(
    case: FitCase, fit: Fit, workload: Workload, load: float, engines: int = 1
) -> Workload:
    """The requests as one of ``engines`` engines sees them: with what its prefix cache holds.
    Nothing where prefix caching is off. A drafter loses the last block of each hit. Endpoints route
    by load, so that a conversation returns to the same engine after ``engines`` turns, whose tokens
    are new to it; so each engine needs memory for all conversations, and where the cache holds
    fewer, that share of the hits remains, and of the others what all prompts share."""
    if not case.engine.prefix_caching:
        return replace(workload, cached_prompt_tokens=0, shared_prompt_tokens=0)
    elsewhere = (engines - 1) * (workload.new_prompt_tokens + workload.output_tokens)
    kept = min(1.0, cached_requests(case, fit, workload) / (load * engines))
    method = case.drafter.method if case.drafter else None
    blocks = [group.block_tokens for group in cache_layout(case).groups]
    shared = workload.shared_prompt_tokens
    hit, of_all = (
        cached_tokens(reusable, method, blocks)
        for reusable in (max(workload.cached_prompt_tokens - elsewhere, shared), shared)
    )
    return replace(workload, cached_prompt_tokens=int(kept * hit + (1 - kept) * of_all))


def turn_step_tokens(workload: Workload, load: float, k: int) -> int:
    """The tokens of a step with the prompt of a turn and those of the other conversations."""
    return workload.new_prompt_tokens + math.ceil(load - 1) * (k + 1)


def _measured(
    case: FitCase,
    workload: Workload,
    load: float,
    runs: Iterable[SpeedRun],
    names: Collection[str | None],
    acceptance: Acceptance,
    geometry: Geometry,
    model: SpeedModel,
    graphs: Graphs,
    at_once: bool,
) -> Performance | None:
    """The measured row at this load, or between the two loads around it, whose prefix cache holds
    as much. A row with an imposed acceptance is not the answer where another one is known."""
    engine = case.engine
    if load > engine.max_num_seqs:
        return None
    captured = geometry.holds(load)
    is_stated = acceptance.basis in ("measured", "published", "assumed")
    for run in runs:
        here = is_on(run, engine.gpu, engine.tensor_parallel_size)
        if not here or versions.compare(run.vllm, engine.vllm) != 0:
            continue
        rows = [
            row
            for row in run.speeds
            if row.drafter in names
            and row.k == engine.k
            and _alike(row.prompt_tokens, workload.prompt_tokens)
            and _alike(row.output_tokens, workload.output_tokens)
            and _computes_alike(_read_size(row), workload)
            and (graph := _with_graphs(geometry, row, graphs)).holds(row.concurrency) == captured
            and (
                at_once
                or (turn_step_tokens(workload, row.concurrency, row.k) <= graph.captured)
                == (turn_step_tokens(workload, load, row.k) <= geometry.captured)
            )
        ]
        lengths = [row.acceptance_length for row in rows if row.acceptance_length]
        others = any(not _alike(length, acceptance.length) for length in lengths)
        if run.synthetic and is_stated and others:
            continue
        by_load = attrgetter("concurrency")
        below = max((r for r in rows if r.concurrency <= load), key=by_load, default=None)
        above = min((r for r in rows if r.concurrency >= load), key=by_load, default=None)
        if below is not None and above is not None:
            # The larger graphs hold both steps, the smaller ones neither.
            pair = _with_graphs(geometry, above if captured else below, graphs)
            gpu = model.gpu(engine.gpu, engine.gpu_memory_gib)
            times = StepTimes(pair, gpu, model) if gpu else None
            return _between(run, below, above, load, at_once, times)
    return None


Graphs = tuple[int, int]
"""The tokens of the largest batch with a CUDA graph, and the most requests of a batch with one."""


def _with_graphs(geometry: Geometry, row: Speed, default: Graphs) -> Geometry:
    """The geometry with the CUDA graphs of a row's engine."""
    size, requests = default
    if row.max_cudagraph_capture_size is not None:
        size = requests = row.max_cudagraph_capture_size
    return geometry.with_graphs(size, requests)


def _read_size(row: Speed) -> Workload:
    """The size of a row's requests; a token where it is unknown."""
    return Workload(row.prompt_tokens or 1, row.output_tokens or 1, row.cached_prompt_tokens)


def _alike(have: float | None, want: float) -> bool:
    return have is not None and max(have, want) <= SAME_SIZE * min(have, want)


def _computes_alike(row: Workload, workload: Workload) -> bool:
    """Whether about as many tokens of a prompt are computed: the prefix cache holds a block or two
    of the chat template in any case."""
    have, want = row.new_prompt_tokens, workload.new_prompt_tokens
    return _alike(have, want) or abs(have - want) <= 2 * BLOCK_TOKENS


def _row_timing(times: StepTimes, row: Speed, load: float, at_once: bool) -> Timing:
    """The model's times of requests as in the row, at this load."""
    size, length = _read_size(row), row.acceptance_length or 1.0
    return closed_load(times, size, load, math.inf, MEASURED_STEP, length, at_once)


def _between(
    run: SpeedRun,
    below: Speed,
    above: Speed,
    load: float,
    at_once: bool,
    times: StepTimes | None,
) -> Performance:
    """Between two measured loads: the geometric mean of both, each moved along the model's curve,
    the nearer one with more weight. The model also has what it takes to send requests in another
    way than they were measured. The range covers the repetitions of both."""
    share, moved = 0.0, [(1.0, 1.0, 1.0)] * 2
    if below is not above:
        share = math.log(load / below.concurrency, above.concurrency / below.concurrency)
    for number, row in enumerate((below, above) if times else ()):
        assert times
        there = _row_timing(times, row, row.concurrency, row.turns == 1)
        here = _row_timing(times, row, load, at_once)
        speed = load * there.total / (row.concurrency * here.total)
        moved[number] = speed, here.first / there.first, here.decode / there.decode

    def at(lower: float | None, upper: float | None, of: int = 0) -> float | None:
        if lower is None or upper is None:
            return None
        mean: float = (lower * moved[0][of]) ** (1 - share) * (upper * moved[1][of]) ** share
        return mean

    def mean(name: str, of: int) -> float | None:
        lower, upper = getattr(below, name), getattr(above, name)
        return at(lower.mean, upper.mean, of) if lower and upper else None

    low, high = below.output_tokens_per_second, above.output_tokens_per_second
    lengths = below.acceptance_length, above.acceptance_length
    length = lengths[0] and lengths[1] and lengths[0] + share * (lengths[1] - lengths[0])
    basis: AcceptanceBasis = "none" if not below.k else "measured"
    if below.k and (run.synthetic or length is None):
        basis = "imposed" if length else "unknown"
    source = f"{run.file}: {run.gpu}, vLLM {run.vllm}, "
    source += f"{below.prompt_tokens:,} + {below.output_tokens:,} tokens, "
    source += f"{below.concurrency:,}" + ("" if below is above else f" and {above.concurrency:,}")
    return Performance(
        basis="measured",
        acceptance=Acceptance(length or 1.0, basis, source),
        source=f"{source} requests" + (f"; {run.caveat}" if run.caveat else ""),
        tokens_per_second=at(low, high),
        low=at(below.low or low, above.low or high),
        high=at(below.high or low, above.high or high),
        ttft_seconds=mean("ttft_seconds", 1),
        itl_seconds=mean("itl_seconds", 2),
    )


class _Ratio(NamedTuple):
    """Measured over modelled time of one row; logarithms of that, of its load and tokens.
    ``captured``: its steps have a CUDA graph."""

    k: int
    captured: bool
    cached_share: float
    log_load: float
    log_prompt: float
    log_answer: float
    log_ratio: float


class _Identity(Generic[T]):
    """A key of a cache for a value that equals only itself: hashing a run with all its rows takes
    longer than using it."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _correction(
    times: StepTimes,
    workload: Workload,
    load: float,
    vllm: str,
    runs: Iterable[SpeedRun],
    names: Collection[str | None],
    graphs: Graphs,
) -> tuple[float, float, list[SpeedRun]]:
    """The factor on the modelled time by the target's runs on any GPU, half the width of the range
    as a share, and the runs that it comes from."""
    geometry, model, gpu = times.geometry, times.model, times.gpu.gpu

    def with_rows(pair: Geometry, of: Collection[str | None]) -> list[tuple[SpeedRun, _Ratios]]:
        # All K, numbers of GPUs and CUDA graphs share the ratios.
        draft = pair.draft and pair.draft._replace(passes=1)
        pair = pair._replace(k=0, draft=draft, tensor_parallel_size=1).with_graphs(0, 0)
        return _near_ratios(_Identity(runs), vllm, pair, frozenset(of), _Identity(model), graphs)

    trusted, run_rows = 1.0, with_rows(geometry, names)
    if geometry.k and not run_rows:
        trusted, run_rows = _ALONE, with_rows(geometry.with_k(0), TARGET_ALONE)
    total, logs, same = _PRIOR, 0.0, False
    captured, log_load = geometry.holds(load), math.log(load)
    log_prompt, log_answer = math.log(workload.prompt_tokens), math.log(workload.output_tokens)
    for run, rows in run_rows:
        here = is_on(run, gpu, geometry.tensor_parallel_size)
        same |= here
        for row in rows:
            distance = (
                abs(row.log_load - log_load) / _LOAD
                + abs(row.k - geometry.k) / _K
                + abs(row.log_prompt - log_prompt) / _PROMPT
                + abs(row.log_answer - log_answer) / _ANSWER
                + abs(row.cached_share - workload.cached_share) / _CACHED
                + _EDGE * (row.captured != captured)
            )
            weight = trusted * (1 if here else _OTHER_GPU) * math.exp(-distance)
            total, logs = total + weight, logs + weight * row.log_ratio
    is_fitted = any(fitted.gpu == gpu for fitted in model.evidence)
    ranges = model.ranges
    width = ranges.both if same else ranges.one if run_rows or is_fitted else ranges.none
    return math.exp(logs / total), width, [run for run, _ in run_rows]


_Ratios = tuple[_Ratio, ...]


@lru_cache(maxsize=256)
def _near_ratios(
    runs: _Identity[Iterable[SpeedRun]],
    vllm: str,
    pair: Geometry,
    names: frozenset[str | None],
    model: _Identity[SpeedModel],
    graphs: Graphs,
) -> list[tuple[SpeedRun, _Ratios]]:
    """The runs that have rows of these drafters, with their ratios. Engines of distant versions
    differ by more than the model is wrong."""
    major, minor, _ = versions.parse(vllm)
    near = []
    for run in runs.value:
        run_major, run_minor, _ = versions.parse(run.vllm)
        if run_major == major and abs(run_minor - minor) <= 1:
            near.append((run, _ratios(run, pair, names, model.value, graphs)))
    return [(run, ratios) for run, ratios in near if ratios]


def _ratios(
    run: SpeedRun,
    pair: Geometry,
    names: frozenset[str | None],
    model: SpeedModel,
    graphs: Graphs,
) -> _Ratios:
    """The ratios of a run's rows of these drafters."""
    ratios = []
    gpu = model.gpu(run.gpu)
    pair = pair._replace(tensor_parallel_size=run.tensor_parallel_size)
    for row in run.speeds if gpu else ():
        lacks = not row.prompt_tokens or not row.output_tokens or row.drafter not in names
        if gpu is None or lacks or (row.k and not row.acceptance_length):
            continue
        size, of_row = _read_size(row), _with_graphs(pair.with_k(row.k), row, graphs)
        load = row.concurrency
        timing = _row_timing(StepTimes(of_row, gpu, model), row, load, row.turns == 1)
        time = load * size.output_tokens / row.output_tokens_per_second
        ratio = math.log(time / timing.total)
        sizes = math.log(size.prompt_tokens), math.log(size.output_tokens)
        captured = of_row.holds(load)
        ratios.append(_Ratio(row.k, captured, size.cached_share, math.log(load), *sizes, ratio))
    return tuple(ratios)
