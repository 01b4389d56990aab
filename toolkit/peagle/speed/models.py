"""Input and output types of the performance model. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Basis = Literal["measured", "estimated", "unknown"]
"""``measured``: evidence has this pair, GPU, vLLM version and workload, at or around this load."""

AcceptanceBasis = Literal["measured", "imposed", "published", "assumed", "unknown", "none"]
"""``measured`` on text; ``imposed`` by vLLM's synthetic sampler while the speed was measured;
``published`` by the head's authors; ``assumed`` where nothing is known; ``none`` without
speculation."""

SAME_SPEED_SHARE = 0.03
"""Settings tie if one is at most this share slower than the fastest, and within its interval."""


@dataclass(frozen=True)
class Workload:
    """Requests of one size: tokens of the prompt and of the answer."""

    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Acceptance:
    """The mean acceptance length, tokens per step: 1 without speculation. ``source`` names the
    text, file or publication."""

    length: float
    basis: AcceptanceBasis
    source: str


@dataclass(frozen=True)
class Performance:
    """One engine (one copy of the model) at one load. Seconds are means.

    ``low`` and ``high`` bound ``tokens_per_second``, output tokens of all requests together.
    ``itl_seconds`` is between two outputs of a request (one step of the engine), ``tpot_seconds``
    per token after the first output. All numbers are ``None`` where ``basis`` is ``unknown``.
    ``source`` says which file and rows, or which constants, in one clause.
    """

    basis: Basis
    acceptance: Acceptance
    source: str
    tokens_per_second: float | None = None
    low: float | None = None
    high: float | None = None
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    tpot_seconds: float | None = None
