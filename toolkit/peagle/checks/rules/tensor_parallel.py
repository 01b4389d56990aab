"""Tensor parallelism over too many GPUs, or over a number that does not divide the heads.

vLLM refuses it at start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, shape_of
from peagle.findings import Finding, error

CODE = "tensor-parallel"
ABOUT = "load"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for too few GPUs, or a number of GPUs that does not divide the attention heads."""
    size, instance, head = case.tensor_parallel_size, case.instance, head_of(case)
    if instance is not None and size > instance.gpu_count:
        message = f"tensor parallelism needs {size} GPUs; {instance.type} has {instance.gpu_count}"
        fix = f"use --tp {instance.gpu_count} or less, or a larger instance"
        yield error(CODE, "tensor_parallel_size", message, fix)
        return
    counts = {case.target.id: shape_of(case).query_heads}
    if head is not None and head.query_heads and case.drafter:
        counts[case.drafter.title] = head.query_heads
    for who, heads in counts.items():
        if heads % size:
            message = f"the {heads} attention heads of {who} cannot be divided among {size} GPUs"
            fix = f"use --tp {max(n for n in (1, 2, 4, 8) if heads % n == 0 and n <= size)}"
            yield error(CODE, "tensor_parallel_size", message, fix)
            return
