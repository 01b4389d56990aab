"""A rejection_sample_method that the vLLM version or the machine does not support.

vLLM rejects it at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("rejection-sample-method", about="version", vllm_notices="at start")

_KEY = "rejection_sample_method"


def check(case: Case) -> Findings:
    method = case.speculative_settings.get(_KEY)
    unknown = [entry for entry in RULE.entries(case) if method not in entry.names]
    if method is not None and unknown:
        yield RULE.of_entry(unknown[0], "drafter", repr(method))
    elif method == "synthetic" and case.on_cpu:
        fix = f"leave {_KEY} out on this machine"
        yield RULE.error("drafter", f"{_KEY} synthetic does not run on a CPU", fix)
