"""Context, K, batch and GPUs: what the engine is asked to do at the same time."""

from __future__ import annotations

from peagle.case import Case
from peagle.checkpoints.heads import trained_k
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix
from peagle.vllm.defaults import (
    GPU_MEMORY_UTILIZATION,
    LARGEST_DEFAULT_STEP,
    default_batched_tokens,
)


@rule("context-above-target", about="load", vllm_notices="at start")
def context_above_target(case: Case) -> Findings:
    """A context longer than the target supports.

    vLLM rejects it at start.
    """
    most, length = case.architecture.max_positions, case.max_model_len
    if length > most:
        message = f"{length:,} tokens exceed the {most:,} that {case.target.id} supports"
        fix = Fix(f"use --max-model-len {most} or less", options=("--max-model-len", f"{most}"))
        yield error("max_model_len", message, fix)


@rule("context-above-drafter", about="load", vllm_notices="never")
def context_above_drafter(case: Case) -> Findings:
    """A context longer than the head supports.

    vLLM 0.28.0 drafts nothing while any running request is longer: it verifies K empty slots
    for each request, without a warning. Older versions can read beyond a table (issue 48894).
    """
    drafter = case.drafter
    if drafter is None or any(context_above_target.check(case)):
        return
    most = (case.head.config.max_positions if case.head else None) or drafter.max_positions
    if most is not None and case.max_model_len > most:
        message = (
            f"{drafter.title}: at most {most:,} tokens; the context allows {case.max_model_len:,}"
        )
        fix = Fix(
            f"use --max-model-len {most}, or expect few accepted drafts in longer requests",
            options=("--max-model-len", f"{most}"),
        )
        yield warning("max_model_len", message, fix)


LONG = 10_000
"""Tokens from which the model cards recommend the long-context head."""
_LONG_SUFFIX = "-long"


@rule("long-context-head", about="load", vllm_notices="never")
def long_context_head(case: Case) -> Findings:
    """A head for short contexts with long ones, or the long-context head with short ones.

    The model cards draw the line at 10,000 tokens. At 100,000 tokens the plain head of
    Qwen3-Coder has an acceptance length of 1.20 and the long one 2.19; on short prompts 3.25
    and 2.65.
    """
    drafter, target, length = case.drafter, case.target, case.max_model_len
    if drafter is None or not case.is_parallel:
        return
    names = {other.name for other in target.drafters}
    plain, long = drafter.name.removesuffix(_LONG_SUFFIX), f"{drafter.name}{_LONG_SUFFIX}"
    if length > LONG and long in names:
        message = (
            f"{drafter.title}: for prompts below {LONG:,} tokens; acceptance falls with longer "
            f"prompts, and the context allows {length:,}"
        )
        level = warning if length > target.default_max_model_len else note
        sentence = f"for longer prompts use {target.short_name}+{long}"
        yield level("drafter", message, Fix(sentence, options=("--drafter", long)))
    elif length < LONG and plain != drafter.name and plain in names:
        message = f"{drafter.title}: for {LONG:,} tokens or more; the context allows {length:,}"
        sentence = f"use {target.short_name}+{plain}, which has a higher acceptance there"
        yield note("drafter", message, Fix(sentence, options=("--drafter", plain)))


@rule("k-above-trained", about="load", vllm_notices="never")
def k_above_trained(case: Case) -> Findings:
    """A K above the K that the head was trained for.

    vLLM accepts any K. Drafts beyond the trained K are rarely accepted and must be verified:
    slower than a smaller K.
    """
    trained, drafter = k_trained(case), case.drafter
    if drafter is not None and trained is not None and case.k > trained:
        message = f"{drafter.title}: K={case.k} exceeds the trained K of {trained}"
        best = min(drafter.k_recommended, trained)
        fix = Fix(f"use --k {trained} or less; {best} is recommended", options=("--k", f"{best}"))
        yield error("k", message, fix)


def k_trained(case: Case) -> int | None:
    """The trained K: the catalogue's, else ``speculative_tokens`` of a P-EAGLE speculators head."""
    k = case.drafter.k_trained if case.drafter else None
    if k or case.head is None:
        return k
    return trained_k(case.head.document)


@rule("k-training-unknown", about="load", vllm_notices="never")
def k_training_unknown(case: Case) -> Findings:
    """A K other than the recommended one for a P-EAGLE head whose trained K is unknown.

    Only a measurement shows whether such a K is too large.
    """
    drafter = case.drafter
    if drafter is None or not case.is_parallel or k_trained(case) is not None:
        return
    if case.k != drafter.k_recommended:
        best = str(drafter.k_recommended)
        fix = Fix(f"if few drafts are accepted, try --k {best}", options=("--k", best))
        yield note("k", f"{drafter.title}: trained K unknown", fix)


_BATCHED_TOKENS = "max-num-batched-tokens"


@rule("drafting-slots", about="load", vllm_notices="at start")
def drafting_slots(case: Case) -> Findings:
    """A batch that is too small for the K-1 slots per request that parallel drafting adds.

    vLLM rejects a max-num-batched-tokens that leaves no token in addition to them. Up to 0.27
    it reserves the slots of all requests that may run, later those of one request, and excess
    requests queue.
    """
    if not case.is_parallel:
        return
    tokens, slots = case.setting(_BATCHED_TOKENS), case.k - 1
    if type(tokens) is int and tokens <= slots:
        message = (
            f"--{_BATCHED_TOKENS} {tokens} leaves no room for a token besides the {slots} draft "
            f"slots of K={case.k}"
        )
        fix = f"omit --{_BATCHED_TOKENS}, or set it to several thousand"
        yield error(_BATCHED_TOKENS, message, fix)
        return
    step = tokens if type(tokens) is int else default_step_tokens(case)
    for entry in drafting_slots.entries(case):
        excess = _excess(case, step, all_requests=entry.value == "all")
        if excess is not None:
            yield drafting_slots.of_entry(entry, "concurrency", excess)


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
        running = case.settings.get("max-num-seqs", requests)
        needed = (running if type(running) is int else requests) * slots
        return (
            f"{running:,} requests need {needed:,} draft slots; a step has {step:,} tokens"
            if needed >= step
            else None
        )
    # Per request, a step verifies its token and K drafts, and adds K-1 slots.
    at_once = step // (case.k + 1 + slots)
    if requests <= at_once:
        return None
    drafts = f"the drafts (K={case.k}) of {at_once:,} of {requests:,} requests"
    return f"a step of {step:,} tokens holds {drafts}"


_PADDED_BATCH = "disable_padded_drafter_batch"


@rule("drafter-batch-padding", about="load", vllm_notices="at start")
def drafter_batch_padding(case: Case) -> Findings:
    """Padding of the drafter's batches turned off where drafting requires it.

    vLLM rejects disable_padded_drafter_batch with P-EAGLE and with explicit asynchronous
    scheduling.
    """
    if not case.is_eagle or case.speculative_settings.get(_PADDED_BATCH) is not True:
        return
    if case.is_parallel or case.setting("async-scheduling") is True:
        why = "P-EAGLE" if case.is_parallel else "--async-scheduling"
        message = f"{_PADDED_BATCH} conflicts with {why}"
        yield error("drafter", message, f"leave {_PADDED_BATCH} out")


_UTILIZATION = "gpu-memory-utilization"
_LEAVE_OUT = f"leave it out for the default, {GPU_MEMORY_UTILIZATION}"
_PERCENT = 10
"""Numbers from here to 100 are likely meant as a percentage."""


@rule("memory-utilization", about="load", vllm_notices="at start")
def memory_utilization(case: Case) -> Findings:
    """A gpu-memory-utilization that is not a share of the memory.

    vLLM rejects a number that is not above 0 and at most 1 at start: 90 percent is 0.9.
    """
    share = case.setting(_UTILIZATION)
    number = share if isinstance(share, (int, float)) and share is not True else 0
    if share is None or 0 < number <= 1:
        return
    fix = f"set it to {number / 100:g}" if _PERCENT <= number <= 100 else _LEAVE_OUT
    message = f"--{_UTILIZATION} is {share}, not a number above 0 and at most 1"
    yield error(_UTILIZATION, message, fix)


@rule("tensor-parallel", about="load", vllm_notices="at start")
def tensor_parallel(case: Case) -> Findings:
    """Tensor parallelism over too many GPUs, or over a number that does not divide the heads.

    vLLM rejects it at start.
    """
    size, instance = case.tensor_parallel_size, case.instance
    if instance is not None and size > instance.gpu_count:
        message = f"tensor parallelism needs {size} GPUs; {instance.type} has {instance.gpu_count}"
        most = str(instance.gpu_count)
        fix = Fix(f"use --tp {most} or less, or a larger instance", options=("--tp", most))
        yield error("tensor_parallel_size", message, fix)
        return
    counts = {case.target.id: case.architecture.query_heads}
    if case.head and case.drafter and case.head.config.query_heads:
        counts[case.drafter.title] = case.head.config.query_heads
    for who, heads in counts.items():
        if heads % size:
            message = f"{who}: {heads} attention heads cannot be divided among {size} GPUs"
            most = str(max(n for n in (1, 2, 4, 8) if heads % n == 0 and n <= size))
            fix = Fix(f"use --tp {most}", options=("--tp", most))
            yield error("tensor_parallel_size", message, fix)
            return


@rule("draft-tensor-parallel", about="load", vllm_notices="at start")
def draft_tensor_parallel(case: Case) -> Findings:
    """A drafter divided over neither one GPU nor as many as the target.

    vLLM rejects any other draft_tensor_parallel_size at start.
    """
    size = case.speculative_settings.get("draft_tensor_parallel_size")
    target = case.tensor_parallel_size
    if size not in (None, 1, target):
        message = f"draft_tensor_parallel_size {size} is neither 1 nor the target's {target}"
        yield error("drafter", message, "leave draft_tensor_parallel_size out")
