"""A model runner that cannot run the drafter.

vLLM selects a runner that can. VLLM_USE_V2_MODEL_RUNNER=1 skips the selection, and the V2 runner
does not run P-EAGLE.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("model-runner-v2", about="version", vllm_notices="never")

_VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"


def check(case: Case) -> Findings:
    forced = case.environment.get(_VARIABLE, "").strip().lower() in ("1", "true")
    kind = "parallel" if case.is_parallel else "sequential"
    for entry in RULE.entries(case) if forced and case.is_eagle else ():
        if entry.value == kind:
            yield RULE.of_entry(entry, "environment", f"{_VARIABLE}=1")
