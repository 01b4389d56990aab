"""A gpu-memory-utilization that is not a share of the memory.

vLLM rejects a number that is not above 0 and at most 1 at start: 90 percent is 0.9.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION

RULE = Rule("memory-utilization", about="load", vllm_notices="at start")

_NAME = "gpu-memory-utilization"
_LEAVE_OUT = f"leave it out for the default, {GPU_MEMORY_UTILIZATION}"

_PERCENT = 10
"""Numbers from here to 100 are likely meant as a percentage."""


def check(case: Case) -> Findings:
    share = case.setting(_NAME)
    number = share if isinstance(share, (int, float)) and share is not True else 0
    if share is None or 0 < number <= 1:
        return
    fix = f"set it to {number / 100:g}" if _PERCENT <= number <= 100 else _LEAVE_OUT
    yield RULE.error(_NAME, f"--{_NAME} is {share}, not a number above 0 and at most 1", fix)
