"""Results of the performance model, and the mean acceptance length of a drafter at any K: from
evidence, else from publications.

The share of accepted drafts falls from position to position by about one factor, so that

    length(K) = 1 + first + first decay + ... + first decay^(K-1)

Two known lengths determine both numbers, more of them the nearest curve; one length determines
``first`` for the usual ``decay`` of the published heads (speed_model.yaml). A position is accepted
at most as often as the one before: ``first`` and ``decay`` are at most 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from peagle.catalog.schema import Drafter, SpeedRun

Basis = Literal["measured", "estimated", "unknown"]
"""``measured``: evidence has this pair, GPU, vLLM version and workload, at or around this load."""

AcceptanceBasis = Literal["measured", "imposed", "published", "assumed", "unknown", "none"]
"""``measured`` on text; ``imposed`` by vLLM's synthetic sampler while the speed was measured;
``published`` by the head's authors; ``assumed`` where nothing is known; ``none`` without
speculation."""

TARGET_ALONE: frozenset[str | None] = frozenset({None})
"""The drafter name of a run's speeds of the target alone."""

SAME_SPEED_SHARE = 0.03
"""Settings tie if one is at most this share slower than the fastest, and within its interval."""


class Acceptance(NamedTuple):
    """The mean acceptance length, tokens per step: 1 without speculation. ``source`` names the
    text, file or publication. ``extrapolated``: none is known of this K or a larger one."""

    length: float
    basis: AcceptanceBasis
    source: str
    extrapolated: bool = False


class Performance(NamedTuple):
    """One engine (one copy of the model) at one load. Seconds are means. ``low`` and ``high`` bound
    ``tokens_per_second``, output tokens of all requests together. ``itl_seconds`` is between two
    outputs of a request. All numbers are ``None`` where ``basis`` is ``unknown``. ``source`` says
    which file and rows, or which constants. The KV cache keeps so many ``conversations`` of this
    size. ``extrapolated``: K is above every K of the drafter with a known acceptance."""

    basis: Basis
    acceptance: Acceptance
    source: str
    tokens_per_second: float | None = None
    low: float | None = None
    high: float | None = None
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    cached_prompt_tokens: int = 0
    conversations: int | None = None
    extrapolated: bool = False


def is_on(run: SpeedRun, gpu: str, tensor_parallel_size: int) -> bool:
    """Whether the run was measured on this many of this GPU, so that its rows can be the answer."""
    return run.gpu == gpu and run.tensor_parallel_size == tensor_parallel_size


def names_in_runs(drafter: Drafter | None, is_own: bool) -> frozenset[str | None]:
    """The names of this drafter in runs; the user's own head has only its location."""
    if drafter is None:
        return TARGET_ALONE
    names = {drafter.weights} if is_own else {drafter.weights, drafter.name}
    return frozenset(name for name in names if name is not None)


NO_DRAFT_ACCEPTANCE = Acceptance(1.0, "none", "no speculation")
"""Every step without speculation makes one token."""

_CERTAIN = 0.985
"""The largest share at the first position: the largest that fits a published head's lengths."""


class Curve(NamedTuple):
    """The share of accepted drafts at the first position, and its decay from one to the next."""

    first: float
    decay: float

    def length(self, k: int) -> float:
        """Tokens per step with K drafts."""
        return 1 + sum(self.first * self.decay**position for position in range(k))


def find_acceptance(
    drafter: Drafter | None,
    k: int,
    runs: Iterable[SpeedRun] = (),
    names: Collection[str | None] = (),
    *,
    decay: float,
) -> Acceptance:
    """The acceptance length with K drafts; basis ``unknown`` and length 1 where nothing is known.
    ``runs`` are those of the target on any GPU, ``names`` the drafter's names in them. A measured
    acceptance is preferred to an imposed one, which is preferred to the published ones, and one of
    the user's own text to all. Those that runs measured on text without a speed count as measured,
    on any device. Lengths between and beyond the known K follow the curve through them."""
    if drafter is None or k < 1:
        return NO_DRAFT_ACCEPTANCE
    lengths, basis, source = _known_lengths(drafter, tuple(runs), names)
    if not lengths:
        return Acceptance(1.0, "unknown", "no acceptance is known")
    length = lengths.get(k)
    if length is None:
        length = curve_through(tuple(sorted(lengths.items())), decay).length(k)
    return Acceptance(round(length, 3), basis, source, extrapolated=k > max(lengths))


def published_rates(drafter: Drafter, k: int, decay: float) -> tuple[float, ...]:
    """The share of drafts accepted at each of K positions, on the curve through the published
    lengths, those of the user's own text before them; empty where none is known."""
    lengths = _known_lengths(drafter, (), ())[0]
    if not lengths:
        return ()
    return position_rates(curve_through(tuple(sorted(lengths.items())), decay), k)


def position_rates(curve: Curve, k: int) -> tuple[float, ...]:
    """The share of drafts accepted at each of K positions."""
    return tuple(round(curve.first * curve.decay**position, 4) for position in range(k))


def _known_lengths(
    drafter: Drafter, runs: Collection[SpeedRun], names: Collection[str | None]
) -> tuple[Mapping[int, float], AcceptanceBasis, str]:
    """The lengths by K, of the best source that has some, and that source."""
    if drafter.on_text:
        lengths = {acceptance.k: acceptance.acceptance_length for acceptance in drafter.on_text}
        return lengths, "measured", drafter.on_text[0].source
    for synthetic in (False, True):
        by_run = []
        for run in sorted(runs, key=lambda run: run.date, reverse=True):
            is_of_text = run.synthetic is synthetic and (synthetic or not run.caveat)
            lengths = _lengths_in(run, names) if is_of_text else {}
            if not synthetic and not lengths:
                lengths = {r.k: r.acceptance_length for r in run.on_text if r.drafter in names}
            if lengths:
                by_run.append((lengths, run.file))
        if by_run:
            # The newest measurement. Imposed lengths are the publisher's: those of the most K.
            lengths, file = max(by_run, key=lambda item: len(item[0])) if synthetic else by_run[0]
            return lengths, "imposed" if synthetic else "measured", file
    # The mean of the benchmarks that were published for the most K, since they differ more than K.
    tasks: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for acceptance in drafter.published:
        tasks[acceptance.benchmark, acceptance.source][acceptance.k] = acceptance.acceptance_length
    most = max(map(len, tasks.values()), default=0)
    chosen = [task for task in tasks.values() if len(task) == most]
    ks = set.intersection(*map(set, chosen)) or set(chosen[0]) if chosen else set()
    chosen = [task for task in chosen if ks <= set(task)]
    source = "; ".join(dict.fromkeys(acceptance.source for acceptance in drafter.published))
    return {k: sum(task[k] for task in chosen) / len(chosen) for k in ks}, "published", source


def _lengths_in(run: SpeedRun, names: Collection[str | None]) -> dict[int, float]:
    """The lengths by K in a run; of several rows the mean, weighted by their tokens: few tokens are
    uncertain."""
    rows_by_k: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for row in run.speeds:
        if row.drafter in names and row.k and row.acceptance_length:
            weight = 1.0 * row.concurrency * (row.output_tokens or 1)
            rows_by_k[row.k].append((row.acceptance_length, weight))
    return {
        k: sum(length * weight for length, weight in rows) / sum(w for _, w in rows)
        for k, rows in rows_by_k.items()
    }


@lru_cache(maxsize=256)
def curve_through(lengths: tuple[tuple[int, float], ...], decay: float) -> Curve:
    """The curve nearest to these lengths by K; with ``decay`` where only one K is known."""
    if len(lengths) == 1:
        ((k, length),) = lengths
        first = (length - 1) / sum(decay**position for position in range(k))
        while first > _CERTAIN and decay < 1:
            decay = min(decay + 0.005, 1.0)
            first = (length - 1) / sum(decay**position for position in range(k))
        return Curve(min(first, 1.0), decay)
    candidates = []
    for number in range(20, 201):
        decay = number / 200  # and the best first share with it, by least squares
        sums = [(sum(decay**i for i in range(k)), length - 1) for k, length in lengths]
        first = sum(x * y for x, y in sums) / sum(x * x for x, _ in sums)
        candidates.append(Curve(min(max(first, 0.0), 1.0), decay))
    return min(
        candidates,
        key=lambda curve: math.fsum((curve.length(k) - length) ** 2 for k, length in lengths),
    )
