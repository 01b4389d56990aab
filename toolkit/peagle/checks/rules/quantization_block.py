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
from peagle.errors import Fix

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
        possible = [
            s for s in divisions(shape, gpus, whole_experts)
            if division_problem(shape, s, whole_experts) is None
        ]  # fmt: skip
        message = f"{tried} GPUs cannot share the weights of {case.target.id}: {problem}"
        fix = _fix(case, possible, tried, whole_experts)
        if tried == size:
            yield RULE.error("tensor_parallel_size", message, fix)
        else:
            yield RULE.note("tensor_parallel_size", message, fix)
        return


def _fix(case: Case, possible: list[int], tried: int, whole_experts: bool) -> Fix:
    sizes = ", ".join(map(str, possible))
    fixes = [f"use a tensor-parallel size that works ({sizes})"] if possible else []
    if not whole_experts and division_problem(case.architecture, tried, True) is None:
        experts = f"--set {EXPERT_PARALLEL}=true"
        fixes.append(f"give each GPU whole experts with {experts}")
    if not fixes:
        fixes.append("use weights with another quantization, or unquantized ones")
    return Fix(", or ".join(fixes))
