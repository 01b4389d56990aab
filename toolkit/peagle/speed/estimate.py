"""The performance of one engine at one load: measured, else estimated, else unknown.

A closed load of N requests is sent at once, as the evidence was measured, and as a client with N
connections begins. With t(P, N) the time of all prompts and s(N, context) that of a decode step:

    time of all answers = t + s x output tokens / acceptance length
    tokens/s            = N x output tokens / time
    TTFT                = until a request's prompt is processed, on average
    ITL                 = (time - TTFT) / steps,  TPOT = ITL / acceptance length

More requests than max-num-seqs, or than the KV cache holds, wait: tokens/s stay those of the
requests that run, and TTFT grows by the wait. Of a prompt, only what the prefix cache does not hold
is processed (``on_engine``).

A row on the same GPUs, vLLM and request size, at this load or around it, is the answer itself;
other rows of the target, of this or an adjacent vLLM version, correct the estimate
(``correction``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

from peagle.catalog.schema import Seconds, Speed, SpeedRun
from peagle.catalog.tables import SpeedModel
from peagle.fit.estimate import GIB, cache_layout, fit_of
from peagle.fit.models import Fit, FitCase
from peagle.speed.correction import correct
from peagle.speed.geometry import geometry_of
from peagle.speed.models import (
    TARGET_ALONE,
    Acceptance,
    AcceptanceBasis,
    Performance,
    Workload,
    is_on,
)
from peagle.speed.step import StepTimes, closed_load
from peagle.vllm import versions
from peagle.vllm.prefix_caching import cached_tokens

SAME_SIZE = 1.1
"""Requests whose tokens differ by at most this factor are of the measured size, as are acceptance
lengths."""


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
    engines: int = 1,
) -> Performance:
    """The performance of one engine with ``load`` concurrent requests of this size.

    ``runs`` are the target's runs on any GPU and vLLM version; ``names`` are the names of the
    case's drafter in them. ``fit`` is the case's memory fit if it is known already; ``engines``
    share the requests of all conversations. The basis is ``unknown`` without an acceptance length,
    on a GPU that speed_model.yaml does not have, and where no request of the workload fits the
    context or the KV cache.
    """
    size, context = workload.prompt_tokens + workload.output_tokens, case.engine.max_model_len
    if size > context:
        lacking = f"requests of {size:,} tokens exceed the context of {context:,}"
        return Performance("unknown", acceptance, lacking)
    conversations: int | None = None
    if workload.cached_prompt_tokens:
        fit = fit or fit_of(case)
        conversations = int(cached_requests(case, fit, workload))
        workload = on_engine(case, fit, workload, load, engines)
    measured = _measured(case, workload, load, runs, names, acceptance)
    if measured is not None:
        return measured
    gpu = model.gpu(case.engine.gpu, case.engine.gpu_memory_gib)
    if acceptance.basis == "unknown" or gpu is None:
        lacking = acceptance.source if gpu else f"no data of the GPU {case.engine.gpu}"
        return Performance("unknown", acceptance, lacking)
    fit = fit or fit_of(case)
    running = slots(case, fit, workload)
    if running < 1:
        return Performance("unknown", acceptance, "no request of this size fits the KV cache")
    # Engines of distant versions differ by more than the model is wrong.
    vllm = case.engine.vllm
    near = [run for run in runs if versions.are_adjacent(run.vllm, vllm)]
    times = StepTimes(geometry_of(case), gpu, model)
    batched = case.engine.max_num_batched_tokens
    timing = closed_load(times, workload, load, running, batched, acceptance.length)
    corrected = correct(times, workload, load, near, names)
    factor, width = corrected.factor, corrected.width
    shape = case.target.architecture
    if shape.latent or shape.recurrent or shape.unknown_cache:
        width = max(width, _UNMEASURED_WIDTH)
    source = f"{model.script}, constants of {model.fitted.isoformat()}"
    if corrected.runs:
        by = [
            run.file if versions.compare(run.vllm, vllm) == 0 else f"{run.file} (vLLM {run.vllm})"
            for run in corrected.runs
        ]
        source += f", corrected by {', '.join(by)}"
    steps = workload.output_tokens / acceptance.length
    total, first = timing.total * factor, timing.first * factor
    tokens = load * workload.output_tokens / total
    step = timing.step * factor
    itl = max(total - first, step) / steps if load <= running else step
    return Performance(
        basis="estimated",
        acceptance=acceptance,
        source=source,
        tokens_per_second=tokens,
        low=tokens * (1 - width),
        high=tokens * (1 + width),
        ttft_seconds=first,
        itl_seconds=itl,
        tpot_seconds=itl / acceptance.length,
        cached_prompt_tokens=workload.cached_prompt_tokens,
        conversations=conversations,
        extrapolated=acceptance.extrapolated,
    )


_UNMEASURED_WIDTH = 0.5
"""Half the range for kinds of attention of which no GPU measurement went into the model."""


def break_even_length(
    drafting: Performance, alone: Performance, workload: Workload, load: float
) -> float | None:
    """The acceptance length above which speculation is faster than the target alone: at least 1;
    ``None`` if unknown, or if no length suffices.

    A request takes ``load * output tokens / tokens per second``. Of that only the time after the
    first token shrinks with the acceptance length, in proportion to it.
    """
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
    length = min(workload.prompt_tokens + workload.output_tokens, case.engine.max_model_len)
    layout = cache_layout(case)
    # Of all requests together one step's prompts are in flight, not of each: about none each.
    each, blocks = layout.request_blocks(length, 0), int(fit.kv_cache_gib * GIB)
    shared = 0
    if case.engine.prefix_caching:
        shared = layout.shared_blocks(workload.shared_prompt_tokens)
    return max(blocks // layout.block_bytes - shared, 0) / (each - shared)


def on_engine(
    case: FitCase, fit: Fit, workload: Workload, load: float, engines: int = 1
) -> Workload:
    """The requests as one of ``engines`` engines sees them: with what its prefix cache holds.

    Nothing where prefix caching is off. A drafter loses the last block of each hit. Endpoints route
    by load, so that a conversation returns to the same engine after ``engines`` turns, whose
    tokens are new to it; so each engine needs memory for all conversations, and where the cache
    holds fewer, that share of the hits remains, and of the others what all prompts share.
    """
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


def _measured(
    case: FitCase,
    workload: Workload,
    load: float,
    runs: Iterable[SpeedRun],
    names: Collection[str | None],
    acceptance: Acceptance,
) -> Performance | None:
    """The measured row at this load, or between the two loads around it.

    A row with an imposed acceptance is not the answer where another one is known.
    """
    engine = case.engine
    if load > engine.max_num_seqs:
        return None
    for run in runs:
        here = is_on(run, engine.gpu, engine.tensor_parallel_size)
        if not here or versions.compare(run.vllm, engine.vllm) != 0:
            continue
        rows = [
            row
            for row in run.speeds
            if row.drafter in names and row.k == engine.k and _same_size(row, workload)
        ]
        if run.synthetic and any(_differs(row, acceptance) for row in rows):
            continue
        by_load = attrgetter("concurrency")
        below = max((r for r in rows if r.concurrency <= load), key=by_load, default=None)
        above = min((r for r in rows if r.concurrency >= load), key=by_load, default=None)
        if below is not None and above is not None:
            return _between(run, below, above, load)
    return None


def _differs(row: Speed, acceptance: Acceptance) -> bool:
    """Whether this acceptance, from text, published or assumed, is not that of the row."""
    if acceptance.basis not in ("measured", "published", "assumed") or not row.acceptance_length:
        return False
    high, low = sorted((acceptance.length, row.acceptance_length), reverse=True)
    return high > SAME_SIZE * low


def _same_size(row: Speed, workload: Workload) -> bool:
    if workload.cached_prompt_tokens:
        return False  # measured prompts are random
    pairs = (
        (row.prompt_tokens, workload.prompt_tokens),
        (row.output_tokens, workload.output_tokens),
    )
    return all(
        have is not None and max(have, want) <= SAME_SIZE * min(have, want) for have, want in pairs
    )


def _between(run: SpeedRun, below: Speed, above: Speed, load: float) -> Performance:
    """Linear between two measured loads; the range covers the repetitions of both."""
    share = 0.0
    if below is not above:
        share = (load - below.concurrency) / (above.concurrency - below.concurrency)

    def at(lower: float | None, upper: float | None) -> float | None:
        return None if lower is None or upper is None else lower + share * (upper - lower)

    def mean(lower: Seconds | None, upper: Seconds | None) -> float | None:
        return None if lower is None or upper is None else at(lower.mean, upper.mean)

    speeds = below.output_tokens_per_second, above.output_tokens_per_second
    tokens = speeds[0] + share * (speeds[1] - speeds[0])
    length = at(below.acceptance_length, above.acceptance_length)
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
        tokens_per_second=tokens,
        low=at(below.low or speeds[0], above.low or speeds[1]),
        high=at(below.high or speeds[0], above.high or speeds[1]),
        ttft_seconds=mean(below.ttft_seconds, above.ttft_seconds),
        itl_seconds=mean(below.itl_seconds, above.itl_seconds),
        tpot_seconds=mean(below.tpot_seconds, above.tpot_seconds),
    )
