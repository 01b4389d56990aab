"""Tensor parallelism over too many GPUs, or over a number that does not divide the heads.

vLLM rejects it at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("tensor-parallel", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    size, instance = case.tensor_parallel_size, case.instance
    if instance is not None and size > instance.gpu_count:
        message = f"tensor parallelism needs {size} GPUs; {instance.type} has {instance.gpu_count}"
        fix = f"use --tp {instance.gpu_count} or less, or a larger instance"
        yield RULE.error("tensor_parallel_size", message, fix)
        return
    counts = {case.target.id: case.architecture.query_heads}
    if case.head and case.drafter and case.head.config.query_heads:
        counts[case.drafter.title] = case.head.config.query_heads
    for who, heads in counts.items():
        if heads % size:
            message = f"{who}: {heads} attention heads cannot be divided among {size} GPUs"
            fix = f"use --tp {max(n for n in (1, 2, 4, 8) if heads % n == 0 and n <= size)}"
            yield RULE.error("tensor_parallel_size", message, fix)
            return
