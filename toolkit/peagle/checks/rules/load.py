"""Context, K, batch and GPUs: what the engine is asked to do at the same time."""

from __future__ import annotations

from peagle.case import Case
from peagle.checkpoints.heads import trained_k
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix
from peagle.vllm.defaults import (
    GPU_MEMORY_UTILIZATION,
)


@rule("context-above-target", about="load", vllm_notices="at start")
def context_above_target(case: Case) -> Findings:
    """A context longer than the target supports."""
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
        allowed = f"the context allows {case.max_model_len:,}"
        sentence = f"use --max-model-len {most}, or expect few accepted drafts in longer requests"
        fix = Fix(sentence, options=("--max-model-len", f"{most}"))
        yield warning("max_model_len", f"{drafter.title}: at most {most:,} tokens; {allowed}", fix)


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
    """A K above the K that the head was trained for, or a K whose training is unknown.

    vLLM accepts any K. Drafts beyond the trained K are rarely accepted and must be verified:
    slower than a smaller K. The trained K is the catalogue's, else ``speculative_tokens`` of a
    P-EAGLE speculators head; where there is none, a K other than the recommended one is a note.
    """
    drafter = case.drafter
    if drafter is None:
        return
    trained, usual = drafter.k_trained, drafter.k_recommended
    if not trained and case.head is not None:
        trained = trained_k(case.head.document)
    if trained is not None and case.k > trained:
        message = f"{drafter.title}: K={case.k} exceeds the trained K of {trained}"
        best = min(usual, trained)
        fix = Fix(f"use --k {trained} or less; {best} is recommended", options=("--k", f"{best}"))
        yield error("k", message, fix)
    elif trained is None and case.is_parallel and case.k != usual:
        fix = Fix(f"if few drafts are accepted, try --k {usual}", options=("--k", f"{usual}"))
        yield note("k", f"{drafter.title}: trained K unknown", fix)


_UTILIZATION = "gpu-memory-utilization"


@rule("memory-utilization", about="load", vllm_notices="at start")
def memory_utilization(case: Case) -> Findings:
    """A gpu-memory-utilization that is not a share of the memory: 90 percent is 0.9."""
    share = case.setting(_UTILIZATION)
    number = share if isinstance(share, (int, float)) and share is not True else 0
    if share is not None and not 0 < number <= 1:
        # Numbers from 10 to 100 are likely meant as a percentage.
        fix = f"leave it out for the default, {GPU_MEMORY_UTILIZATION}"
        fix = f"set it to {number / 100:g}" if 10 <= number <= 100 else fix
        message = f"--{_UTILIZATION} is {share}, not a number above 0 and at most 1"
        yield error(_UTILIZATION, message, fix)


@rule("tensor-parallel", about="load", vllm_notices="at start")
def tensor_parallel(case: Case) -> Findings:
    """Tensor parallelism over too many GPUs, or over a number that does not divide the heads."""
    size, instance = case.tensor_parallel_size, case.instance
    if instance is not None and size > instance.gpu_count:
        message = f"tensor parallelism needs {size} GPUs; {instance.place} has {instance.gpu_count}"
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
            yield error(
                "tensor_parallel_size", message, Fix(f"use --tp {most}", options=("--tp", most))
            )
            return
