"""Prefix caching with an EAGLE head where it is not known to work.

vLLM runs with both, but hits may be missing or acceptance may fall, without a warning.
"""

from peagle.case import Case, prefix_caching_with
from peagle.checks.registry import Findings, Rule
from peagle.vllm.prefix_caching import PREFIX_CACHING

RULE = Rule("prefix-caching", about="version", vllm_notices="never")


def check(case: Case) -> Findings:
    caching = prefix_caching_with(case.target, case.drafter, case.runtime.vllm, case.runtimes)
    if caching and not caching.works and case.setting(PREFIX_CACHING) is True:
        message = f"--{PREFIX_CACHING}: {caching.says} ({caching.source})"
        yield RULE.warning("vllm", message, f"add --no-{PREFIX_CACHING}")
