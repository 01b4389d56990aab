"""Tensor parallelism over too many GPUs, or over a number that does not divide the heads.

vLLM rejects it at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("tensor-parallel", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    size, instance = case.tensor_parallel_size, case.instance
    if instance is not None and size > instance.gpu_count:
        message = f"tensor parallelism needs {size} GPUs; {instance.type} has {instance.gpu_count}"
        most = str(instance.gpu_count)
        fix = Fix(f"use --tp {most} or less, or a larger instance", options=("--tp", most))
        yield RULE.error("tensor_parallel_size", message, fix)
        return
    counts = {case.target.id: case.architecture.query_heads}
    if case.head and case.drafter and case.head.config.query_heads:
        counts[case.drafter.title] = case.head.config.query_heads
    for who, heads in counts.items():
        if heads % size:
            message = f"{who}: {heads} attention heads cannot be divided among {size} GPUs"
            most = str(max(n for n in (1, 2, 4, 8) if heads % n == 0 and n <= size))
            fix = Fix(f"use --tp {most}", options=("--tp", most))
            yield RULE.error("tensor_parallel_size", message, fix)
            return
