"""A batch has room for the slots that a parallel head adds: K-1 for each request.

vLLM refuses a max-num-batched-tokens that holds no token beside them when it starts. Up to 0.27 it
counts the slots of every request that may run, since then those of one; then requests wait.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_parallel, setting, version_finding
from peagle.findings import Finding, error
from peagle.vllm.defaults import LARGEST_DEFAULT_STEP, default_batched_tokens

CODE = "drafting-slots"
ABOUT = "load"
VLLM_NOTICES = "at start"

_ROOM = "max-num-batched-tokens"


def check(case: Case) -> Iterator[Finding]:
    """An error when nothing can be scheduled, a warning when the requests cannot run at once."""
    if not is_parallel(case):
        return
    given, slots = setting(case, _ROOM), case.k - 1
    if type(given) is int and given <= slots:
        message = f"--{_ROOM} {given} leaves no token beside the {slots} of K={case.k}"
        yield error(CODE, _ROOM, message, "leave it out, or give several thousand")
        return
    room = given if type(given) is int else default_room(case)
    for entry in entries(case, CODE):
        who = _crowded(case, room, everybody=entry.value == "all")
        if who is not None:
            yield version_finding(entry, "concurrency", who)


def default_room(case: Case) -> int:
    """Tokens of a step by default (vLLM's get_batch_defaults); without an instance the most
    that it can be, so that what may fit is not reported."""
    if case.on_cpu:
        return 2048
    if case.instance is None:
        return LARGEST_DEFAULT_STEP
    on = case.instance
    return default_batched_tokens(on.gpu, on.gpu_memory_mib / 1024, case.runtime.vllm)


def _crowded(case: Case, room: int, *, everybody: bool) -> str | None:
    """What is too much for a step; ``None`` when all that is asked for fits."""
    requests, slots = case.concurrency, case.k - 1
    if requests is None:
        return None
    if everybody:
        if requests * slots < room:
            return None
        return f"{requests:,} requests need {requests * slots:,} slots of a step of {room:,} tokens"
    # A request in a step: its token and K drafts are verified, and K-1 slots are added.
    at_once = room // (case.k + 1 + slots)
    if requests <= at_once:
        return None
    return f"a step of {room:,} tokens drafts K={case.k} for {at_once:,} of {requests:,} requests"
