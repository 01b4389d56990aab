"""Results of the performance model, and which measured runs answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
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
