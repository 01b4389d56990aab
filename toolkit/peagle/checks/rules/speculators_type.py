"""A head in the speculators format that is neither eagle3 nor peagle.

vLLM rejects an unknown type at start, and starts another kind of drafter for other known types.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("speculators-type", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    kind = head.config.speculators
    if kind not in (None, "eagle3", "peagle"):
        message = f"{head.location} has speculators_model_type {kind!r}, neither eagle3 nor peagle"
        yield RULE.error("drafter", message, "use an EAGLE-3 or P-EAGLE head")
