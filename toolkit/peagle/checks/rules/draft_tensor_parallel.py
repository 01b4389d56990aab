"""A drafter divided over neither one GPU nor as many as the target.

vLLM refuses any other draft_tensor_parallel_size at start.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import speculative_settings
from peagle.findings import Finding, error

CODE = "draft-tensor-parallel"
ABOUT = "load"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for any other size."""
    size = speculative_settings(case).get("draft_tensor_parallel_size")
    target = case.tensor_parallel_size
    if size not in (None, 1, target):
        message = f"draft_tensor_parallel_size {size} is neither 1 nor the target's {target}"
        yield error(CODE, "drafter", message, "leave draft_tensor_parallel_size out")
