"""Padding of the drafter's batches turned off where drafting requires it.

vLLM refuses disable_padded_drafter_batch with P-EAGLE and with explicit asynchronous scheduling.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import is_eagle, is_parallel, setting, speculative_settings
from peagle.findings import Finding, error

CODE = "drafter-batch-padding"
ABOUT = "load"
VLLM_NOTICES = "at start"

_KEY = "disable_padded_drafter_batch"


def check(case: Case) -> Iterator[Finding]:
    """An error when the setting conflicts with parallel drafting or scheduling."""
    if not is_eagle(case) or speculative_settings(case).get(_KEY) is not True:
        return
    if is_parallel(case) or setting(case, "async-scheduling") is True:
        why = "P-EAGLE" if is_parallel(case) else "--async-scheduling"
        yield error(CODE, "drafter", f"{_KEY} conflicts with {why}", f"leave {_KEY} out")
