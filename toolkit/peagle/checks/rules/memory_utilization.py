"""A gpu-memory-utilization that is not a share of the memory.

vLLM refuses a number that is not above 0 and at most 1 at start: 90 percent is 0.9.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import setting
from peagle.findings import Finding, error

CODE = "memory-utilization"
ABOUT = "load"
VLLM_NOTICES = "at start"

_NAME = "gpu-memory-utilization"


def check(case: Case) -> Iterator[Finding]:
    """An error for any other number, or no number."""
    share = setting(case, _NAME)
    if share is None or (type(share) in (int, float) and 0 < float(share) <= 1):
        return
    percent = type(share) in (int, float) and 1 < float(share) <= 100
    fix = f"set it to {float(share) / 100:g}" if percent else "leave it out for the default, 0.92"
    message = f"--{_NAME} is {share}, not a number above 0 and at most 1"
    yield error(CODE, _NAME, message, fix)
