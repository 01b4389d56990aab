"""A drafter divided over neither one GPU nor as many as the target.

vLLM rejects any other draft_tensor_parallel_size at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("draft-tensor-parallel", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    size = case.speculative_settings.get("draft_tensor_parallel_size")
    target = case.tensor_parallel_size
    if size not in (None, 1, target):
        message = f"draft_tensor_parallel_size {size} is neither 1 nor the target's {target}"
        yield RULE.error("drafter", message, "leave draft_tensor_parallel_size out")
