"""A batch without room for the K-1 slots per request that parallel drafting adds.

vLLM refuses a max-num-batched-tokens that leaves no token beside them. Up to 0.27 it reserves the
slots of all requests that may run, later those of one request, and excess requests queue.
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
    """An error when nothing can be scheduled, a warning when requests cannot run concurrently."""
    if not is_parallel(case):
        return
    given, slots = setting(case, _ROOM), case.k - 1
    if type(given) is int and given <= slots:
        message = f"--{_ROOM} {given} leaves no token beside the {slots} draft slots of K={case.k}"
        yield error(CODE, _ROOM, message, f"leave --{_ROOM} out, or set several thousand")
        return
    room = given if type(given) is int else default_step_tokens(case)
    for entry in entries(case, CODE):
        who = _excess(case, room, all_requests=entry.value == "all")
        if who is not None:
            yield version_finding(entry, "concurrency", who)


def default_step_tokens(case: Case) -> int:
    """Default tokens per step (vLLM's get_batch_defaults); without an instance the largest
    default, so that a case that may fit is not reported."""
    if case.on_cpu:
        return 2048
    if case.instance is None:
        return LARGEST_DEFAULT_STEP
    on = case.instance
    return default_batched_tokens(on.gpu, on.gpu_memory_mib / 1024, case.runtime.vllm)


def _excess(case: Case, room: int, *, all_requests: bool) -> str | None:
    """What exceeds a step; ``None`` when all requests fit."""
    requests, slots = case.concurrency, case.k - 1
    if requests is None:
        return None
    if all_requests:
        if requests * slots < room:
            return None
        needed = f"{requests:,} requests need {requests * slots:,} draft slots"
        return f"{needed}; a step has {room:,} tokens"
    # Per request, a step verifies its token and K drafts, and adds K-1 slots.
    at_once = room // (case.k + 1 + slots)
    if requests <= at_once:
        return None
    return (
        f"a step of {room:,} tokens has room for K={case.k} of {at_once:,} of {requests:,} requests"
    )
