"""Tensor parallelism over a number of GPUs that cuts a block of quantized weights, an expert or a
recurrent head in two.

vLLM rejects it while it builds the layers, minutes into the start.
"""

from peagle.case import Case
from peagle.checkpoints.division import (
    EXPERT_PARALLEL,
    division_problem,
    divisions,
    is_expert_parallel,
    sizes_of_heads,
)
from peagle.checks.registry import Findings, Rule

RULE = Rule("quantization-block", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    shape, size = case.architecture, case.tensor_parallel_size
    whole_experts = is_expert_parallel(case.settings)
    gpus = max(size, case.instance.gpu_count if case.instance else size)
    others = [s for s in sizes_of_heads(shape, gpus) if s > size]
    for tried in (size, *others):
        if shape.query_heads % tried:
            continue  # tensor-parallel reports it
        problem = division_problem(shape, tried, whole_experts)
        if problem is None:
            continue
        # Where vLLM refuses every size, divisions still has the smallest.
        works = [
            str(s)
            for s in divisions(shape, gpus, whole_experts)
            if division_problem(shape, s, whole_experts) is None
        ]
        message = f"{tried} GPUs cannot share the weights of {case.target.id}: {problem}"
        fix = f"use a tensor-parallel size that works ({', '.join(works)})"
        if not works:
            fix = "use weights with another quantization, or unquantized ones"
        if not whole_experts and division_problem(shape, tried, True) is None:
            fix += f", or give each GPU whole experts with --set {EXPERT_PARALLEL}=true"
        if tried == size:
            yield RULE.error("tensor_parallel_size", message, fix)
        else:
            yield RULE.note("tensor_parallel_size", message, fix)
        return
