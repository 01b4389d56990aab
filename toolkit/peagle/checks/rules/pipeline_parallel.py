"""Pipeline parallelism with a drafter.

vLLM 0.28.0 refuses it at start, since the head's class cannot be split into stages; 0.33.0 refuses
it with asynchronous scheduling only.
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
    """A finding for more than one stage; entries differ by scheduling."""
    stages = setting(case, "pipeline-parallel-size")
    if type(stages) is not int or stages < 2 or not is_eagle(case):
        return
    # Asynchronous scheduling is on by default.
    kind = "sync" if setting(case, "async-scheduling") is False else "async"
    for entry in entries(case, CODE):
        if entry.value in (None, kind):
            yield version_finding(entry, "vllm", f"--pipeline-parallel-size {stages}")
