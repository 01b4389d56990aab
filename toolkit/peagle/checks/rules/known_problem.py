"""Known problems of a drafter on a vLLM version.

Each problem has its own code, with level, summary, fix and source in the target's file.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case, family_of
from peagle.findings import Finding
from peagle.vllm import versions

CODE = "known-problem"
ABOUT = "version"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A finding for each problem of this version and instance type."""
    for problem in case.drafter.problems if case.drafter else ():
        here = problem.vllm is None or versions.in_range(case.runtime.vllm, problem.vllm)
        if here and _may_affect(case.instance_type, problem.instance_families):
            yield Finding(
                code=problem.code,
                level=problem.level,
                where="drafter",
                message=f"{problem.summary} ({problem.source})",
                fix=problem.fix,
            )


def _may_affect(instance_type: str | None, families: tuple[str, ...]) -> bool:
    """Whether the instance type is, or may be, in one of these families; none listed: any."""
    return not families or instance_type is None or family_of(instance_type) in families
