"""Padding of the drafter's batches turned off where drafting requires it.

vLLM rejects disable_padded_drafter_batch with P-EAGLE and with explicit asynchronous scheduling.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("drafter-batch-padding", about="load", vllm_notices="at start")

_KEY = "disable_padded_drafter_batch"


def check(case: Case) -> Findings:
    if not case.is_eagle or case.speculative_settings.get(_KEY) is not True:
        return
    if case.is_parallel or case.setting("async-scheduling") is True:
        why = "P-EAGLE" if case.is_parallel else "--async-scheduling"
        yield RULE.error("drafter", f"{_KEY} conflicts with {why}", f"leave {_KEY} out")
