"""A vLLM version older than target or drafter need.

Older versions lack a class or a config key and refuse to start.
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

NEWER = "leave --vllm out, or use a newer version"


def check(case: Case) -> Iterator[Finding]:
    """An error below the minimum, unless another rule names the missing feature."""
    who, minimum = minimum_of(case.target, case.drafter)
    version = case.runtime.vllm
    if versions.compare(version, minimum) >= 0:
        return
    exact = (eagle3_target_support, kv_group_rule, speculators_format)
    target_too_new = versions.compare(version, case.target.min_vllm) < 0
    if target_too_new or not any(any(rule.check(case)) for rule in exact):
        yield error(CODE, "vllm", f"{who} needs vLLM {minimum} or later, not {version}", NEWER)


def minimum_of(target: Target, drafter: Drafter | None) -> tuple[str, str]:
    """The target or drafter that needs the newer vLLM, and that version."""
    needs = [(target.title, target.min_vllm)]
    if drafter is not None:
        needs.append((drafter.title, drafter.min_vllm))
    return max(needs, key=lambda need: versions.parse(need[1]))
