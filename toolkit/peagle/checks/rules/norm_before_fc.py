"""A head with a norm before ``fc`` on a vLLM version that ignores that norm.

Older versions load the head without it: the endpoint becomes healthy, and nearly no draft is
accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("norm-before-fc", about="version", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    if head.config.norm_before_fc:
        yield from RULE.by_version(case, "vllm", head.location)
