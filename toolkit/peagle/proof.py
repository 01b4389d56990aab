"""Proof that a server speculates: fixed prompts, and the engine's counters before and after.

``/ping`` succeeds even if every draft is rejected, so it proves nothing. Callers pass the
transport: AWS, the sandbox and local engines are proved in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from peagle.errors import Fix, NotProved
from peagle.protocol import Counters, acceptance_length, request_body


@dataclass(frozen=True)
class Proof:
    """The result of a proof.

    ``acceptance_length`` is the mean number of tokens per verification step (1.0: no draft was
    ever accepted), ``None`` when nothing was drafted. ``acceptance_per_position`` is the share of
    drafts whose token at that position was accepted. ``floor`` is the least length that passes;
    ``None`` when the server does not speculate: then a response is the proof.
    """

    acceptance_length: float | None
    drafts: int
    acceptance_per_position: tuple[float, ...]
    floor: float | None
    passed: bool


def prove(
    send: Callable[[dict[str, Any]], object],
    read_counters: Callable[[], Counters],
    *,
    prompts: Sequence[str],
    chat: bool,
    max_tokens: int,
    floor: float | None,
) -> Proof:
    """Send every prompt with temperature 0, and evaluate the drafts and acceptances in between.

    ``send`` sends one request body and returns when the response is complete. Without a ``floor``
    anything above 1.0 passes: at least one draft was accepted.
    """
    before = read_counters()
    for prompt in prompts:
        send(request_body(prompt, chat=chat, max_tokens=max_tokens))
    return evaluate(read_counters().since(before), floor)


def evaluate(counted: Counters, floor: float | None) -> Proof:
    """The proof from the counts while the prompts ran."""
    length = acceptance_length(counted)
    rates = tuple(n / counted.drafts for n in counted.accepted_per_position if counted.drafts)
    passed = length is not None and length > 1.0 and length >= (floor or 1.0)
    return Proof(length, counted.drafts, rates, floor or 1.0, passed)


def require_passed(proof: Proof) -> None:
    """Raise NotProved, with the cause and a fix, unless ``proof`` passed."""
    if proof.passed:
        return
    if proof.acceptance_length is None:
        raise NotProved(
            "the engine responds but drafts nothing: speculation is off",
            "check --speculative-config in the first lines of the log",
        )
    has_floor = proof.floor is not None and proof.floor > 1.0
    least = f"the floor of {proof.floor:.2f}" if has_floor else "1.00: no draft was accepted"
    raise NotProved(
        f"acceptance length {proof.acceptance_length:.2f} over {proof.drafts} drafts is below "
        f"{least}",
        Fix(
            "the head may not fit this target: check its revision and its known problems",
            ("peagle", "catalog", "show", "PAIR"),
        ),
    )
