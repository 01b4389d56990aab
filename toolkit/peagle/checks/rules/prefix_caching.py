"""Prefix caching with heads whose model cards turn it off.

vLLM runs with both, but cache hits are lost and acceptance falls, without a warning.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("prefix-caching", about="version", vllm_notices="never")


def check(case: Case) -> Findings:
    if case.is_eagle and case.setting("enable-prefix-caching") is True:
        yield from RULE.by_version(case, "vllm", "--enable-prefix-caching")
