"""vLLM is as new as target and drafter need.

Older versions do not know the class or the key, and refuse when they start; which one, no table
says.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.catalog.schema import Drafter, Target
from peagle.checks.rules import eagle3_target_support, kv_group_rule, speculators_format
from peagle.findings import Finding, error
from peagle.vllm import versions

CODE = "vllm-below-minimum"
ABOUT = "version"
VLLM_NOTICES = "at start"

NEWER = "leave --vllm out, or name a newer version"


def check(case: Case) -> Iterator[Finding]:
    """An error below the minimum, unless another rule says more exactly what is missing."""
    who, minimum = minimum_of(case.target, case.drafter)
    version = case.runtime.vllm
    if versions.compare(version, minimum) >= 0:
        return
    exact = (eagle3_target_support, kv_group_rule, speculators_format)
    targets = versions.compare(version, case.target.min_vllm) < 0
    if targets or not any(any(rule.check(case)) for rule in exact):
        yield error(CODE, "vllm", f"{who} needs vLLM {minimum} or later, not {version}", NEWER)


def minimum_of(target: Target, drafter: Drafter | None) -> tuple[str, str]:
    """Whose need is the greater, and the oldest vLLM that the pair runs on."""
    needs = [(target.title, target.min_vllm)]
    if drafter is not None:
        needs.append((drafter.title, drafter.min_vllm))
    return max(needs, key=lambda need: versions.parse(need[1]))
