"""Known problems of a drafter on a vLLM version.

Each problem has its own code, with level, summary, fix and source in the target's file.
"""

from peagle.case import Case, family_of
from peagle.checks.registry import Findings, Rule
from peagle.findings import finding
from peagle.vllm import versions

RULE = Rule("known-problem", about="version", vllm_notices="never")


def check(case: Case) -> Findings:
    for problem in case.drafter.problems if case.drafter else ():
        here = problem.vllm is None or versions.in_range(case.runtime.vllm, problem.vllm)
        if here and _may_affect(case.instance_type, problem.instance_families):
            message = f"{problem.summary} ({problem.source})"
            yield finding(problem.level, problem.code, "drafter", message, problem.fix)


def _may_affect(instance_type: str | None, families: tuple[str, ...]) -> bool:
    """Whether the instance type is, or may be, in one of these families; none listed: any."""
    return not families or instance_type is None or family_of(instance_type) in families
