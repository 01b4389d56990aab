"""Proof that a server speculates: fixed prompts, and the engine's own counters before and after.

``/ping`` is green also when every draft is refused, so it proves nothing. The transport is the
caller's: the same judgement falls on an endpoint of AWS, of the sandbox, and on a local process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from peagle.errors import NotProved
from peagle.protocol import Counters, acceptance_length, request_body


@dataclass(frozen=True)
class Proof:
    """What the counters showed.

    ``acceptance_length`` is the mean number of tokens per verification step (1.0: no draft was
    ever accepted), ``None`` when nothing was drafted. ``acceptance_per_position`` is the share of
    drafts whose token at that position was accepted. ``floor`` is the least length that passes;
    ``None`` when the server does not speculate: then an answer is the proof.
    """

    acceptance_length: float | None
    drafts: int
    acceptance_per_position: tuple[float, ...]
    floor: float | None
    passed: bool


def prove(
    ask: Callable[[dict[str, Any]], object],
    read_counters: Callable[[], Counters],
    *,
    prompts: Sequence[str],
    chat: bool,
    max_tokens: int,
    floor: float | None,
) -> Proof:
    """Ask every prompt greedily, and judge what was drafted and accepted meanwhile.

    ``ask`` sends one request body and returns when the answer is complete. Without a ``floor``
    anything above 1.0 passes: at least one draft was accepted.
    """
    before = read_counters()
    for prompt in prompts:
        ask(request_body(prompt, chat=chat, max_tokens=max_tokens))
    return judge(read_counters().since(before), floor)


def judge(counted: Counters, floor: float | None) -> Proof:
    """The verdict on what was counted while the prompts ran."""
    length = acceptance_length(counted)
    rates = tuple(n / counted.drafts for n in counted.accepted_per_position if counted.drafts)
    passed = length is not None and length > 1.0 and length >= (floor or 1.0)
    return Proof(length, counted.drafts, rates, floor or 1.0, passed)


def require(proof: Proof) -> None:
    """Raise NotProved, with what is wrong and where to look, unless ``proof`` passed."""
    if proof.passed:
        return
    if proof.acceptance_length is None:
        raise NotProved(
            "the engine answers, but drafted nothing: speculation is off",
            "look for --speculative-config in the log's first lines",
        )
    raise NotProved(
        f"acceptance length {proof.acceptance_length:.2f} over {proof.drafts} drafts is below "
        f"{_at_least(proof.floor)}",
        "the head may not belong to this target: check its revision and its known problems with "
        "`peagle catalog show PAIR`",
    )


def _at_least(floor: float | None) -> str:
    return f"the floor of {floor:.2f}" if floor and floor > 1.0 else "1.00: no draft was accepted"
