"""Adaptive verification with a method or version of vLLM that does not have it.

vLLM rejects it at start.
"""

from peagle.case import Case
from peagle.catalog.tables import support_of
from peagle.checks.registry import Findings, Rule

RULE = Rule("adaptive-verification", about="version", vllm_notices="at start")

_SETTING = "enable_adaptive_verification"


def check(case: Case) -> Findings:
    drafter = case.drafter
    if drafter is None or case.speculative_settings.get(_SETTING) is not True:
        return
    version = case.runtime.vllm
    support = support_of(case.runtimes, drafter.method, drafter.parallel_drafting, version)
    if support is not None and not support.adaptive:
        called = "P-EAGLE" if drafter.parallel_drafting else drafter.method
        message = f"vLLM {version} has no {_SETTING} for {called} ({support.source})"
        yield RULE.error("drafter", message, "leave it out")
