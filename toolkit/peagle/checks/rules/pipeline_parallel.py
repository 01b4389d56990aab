"""A model with a drafter is divided by tensors, not into a pipeline.

vLLM 0.28.0 refuses the pipeline when it starts, since the head's class cannot be cut into stages;
0.33.0 refuses it with asynchronous scheduling only.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import entries, is_eagle, setting, version_finding
from peagle.findings import Finding

CODE = "pipeline-parallel"
ABOUT = "version"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A finding for more than one stage; which one depends on the scheduling."""
    stages = setting(case, "pipeline-parallel-size")
    if type(stages) is not int or stages < 2 or not is_eagle(case):
        return
    # vLLM schedules asynchronously unless that is turned off.
    kind = "sync" if setting(case, "async-scheduling") is False else "async"
    for entry in entries(case, CODE):
        if entry.value in (None, kind):
            yield version_finding(entry, "vllm", f"--pipeline-parallel-size {stages}")
