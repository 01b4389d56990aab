"""A batch that is too small for the K-1 slots per request that parallel drafting adds.

vLLM rejects a max-num-batched-tokens that leaves no token in addition to them. Up to 0.27 it
reserves the slots of all requests that may run, later those of one request, and excess
requests queue.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.defaults import LARGEST_DEFAULT_STEP, default_batched_tokens

RULE = Rule("drafting-slots", about="load", vllm_notices="at start")

_OPTION = "max-num-batched-tokens"


def check(case: Case) -> Findings:
    if not case.is_parallel:
        return
    given, slots = case.setting(_OPTION), case.k - 1
    if type(given) is int and given <= slots:
        message = (
            f"--{_OPTION} {given} leaves no room for a token besides the {slots} draft slots of "
            f"K={case.k}"
        )
        yield RULE.error(_OPTION, message, f"omit --{_OPTION}, or set it to several thousand")
        return
    step = given if type(given) is int else default_step_tokens(case)
    for entry in RULE.entries(case):
        excess = _excess(case, step, all_requests=entry.value == "all")
        if excess is not None:
            yield RULE.of_entry(entry, "concurrency", excess)


def default_step_tokens(case: Case) -> int:
    """Default tokens per step (vLLM's get_batch_defaults); without an instance the largest
    default, so that a case that may fit is not reported."""
    if case.on_cpu:
        return 2048
    if case.instance is None:
        return LARGEST_DEFAULT_STEP
    on = case.instance
    return default_batched_tokens(on.gpu, on.gpu_memory_mib / 1024, case.runtime.vllm)


def _excess(case: Case, step: int, *, all_requests: bool) -> str | None:
    """What exceeds a step; ``None`` when all requests fit."""
    requests, slots = case.concurrency, case.k - 1
    if requests is None:
        return None
    if all_requests:
        needed = requests * slots
        return (
            f"{requests:,} requests need {needed:,} draft slots; a step has {step:,} tokens"
            if needed >= step
            else None
        )
    # Per request, a step verifies its token and K drafts, and adds K-1 slots.
    at_once = step // (case.k + 1 + slots)
    if requests <= at_once:
        return None
    drafts = f"the drafts (K={case.k}) of {at_once:,} of {requests:,} requests"
    return f"a step of {step:,} tokens holds {drafts}"
