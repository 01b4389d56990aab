"""A vLLM version older than target or drafter need.

Older versions lack a class or a config key and do not start. If another rule names the missing
feature, this one reports nothing.
"""

from peagle.case import Case
from peagle.catalog.schema import Drafter, Target
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules import eagle3_target_support, kv_group_rule, speculators_format
from peagle.findings import Finding
from peagle.vllm import versions

RULE = Rule("vllm-below-minimum", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    found = below_minimum(case)
    if found is None:
        return
    exact = (eagle3_target_support, kv_group_rule, speculators_format)
    target_too_new = versions.compare(case.runtime.vllm, case.target.min_vllm) < 0
    if target_too_new or not any(any(rule.check(case)) for rule in exact):
        yield found


def below_minimum(case: Case) -> Finding | None:
    """The finding if the version is older than the pair needs, also where another rule names the
    missing feature."""
    who, minimum = minimum_of(case.target, case.drafter)
    version = case.runtime.vllm
    if versions.compare(version, minimum) >= 0:
        return None
    message = f"{who} needs vLLM {minimum} or later, not {version}"
    return RULE.error("vllm", message, "leave --vllm out, or use a newer version")


def minimum_of(target: Target, drafter: Drafter | None) -> tuple[str, str]:
    """The target or drafter that needs the newer vLLM, and that version."""
    needs = [(model.title, model.min_vllm) for model in (target, drafter) if model is not None]
    return max(needs, key=lambda need: versions.parse(need[1]))
