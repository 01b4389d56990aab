"""What the catalogue knows against a drafter on a version of vLLM is told.

Each problem has a code of its own, with level, summary, fix and source in the target's file.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.catalog import versions
from toolkit.checks.models import Case
from toolkit.findings import Finding

CODE = "known-problem"
ABOUT = "version"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A finding for each problem of the drafter that this version has."""
    for problem in case.drafter.problems if case.drafter else ():
        if problem.vllm is None or versions.in_range(case.runtime.vllm, problem.vllm):
            yield Finding(
                code=problem.code,
                level=problem.level,
                where="drafter",
                message=f"{problem.summary} ({problem.source})",
                fix=problem.fix,
            )
