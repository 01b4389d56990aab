"""The drafter's batches are padded, without which it cannot run in parallel or asynchronously.

vLLM refuses disable_padded_drafter_batch with P-EAGLE, and with asynchronous scheduling that was
asked for, when it starts.
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
    """An error where the setting cannot be."""
    if not is_eagle(case) or speculative_settings(case).get(_KEY) is not True:
        return
    if is_parallel(case) or setting(case, "async-scheduling") is True:
        why = "P-EAGLE" if is_parallel(case) else "--async-scheduling"
        yield error(CODE, "drafter", f"{_KEY} does not go with {why}", "leave it out")
