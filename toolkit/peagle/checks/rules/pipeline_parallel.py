"""Pipeline parallelism with a drafter.

vLLM 0.28.0 rejects it at start, since the head's class cannot be split into stages; 0.33.0 rejects
it with asynchronous scheduling only.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("pipeline-parallel", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    stages = case.setting("pipeline-parallel-size")
    if type(stages) is not int or stages < 2 or not case.is_eagle:
        return
    # Asynchronous scheduling is on by default.
    kind = "sync" if case.setting("async-scheduling") is False else "async"
    for entry in RULE.entries(case):
        if entry.value in (None, kind):
            yield RULE.of_entry(entry, "vllm", f"--pipeline-parallel-size {stages}")
