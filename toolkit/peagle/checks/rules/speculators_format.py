"""A P-EAGLE head in the speculators format on a vLLM version that does not support the format.

Older versions reject it at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("speculators-format", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    head, drafter = case.head, case.drafter
    if drafter is None or not case.is_parallel:
        return
    if head.config.speculators == "peagle" if head else drafter.format == "speculators":
        yield from RULE.by_version(case, "vllm", drafter.title)
