"""A P-EAGLE speculators head with Qwen3 layers on a vLLM version without its class.

Versions that support the format but not the class reject it at start.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head
from peagle.checks.rules import speculators_format

RULE = Rule("peagle-qwen3-head", about="version", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    kind = (head.config.speculators, head.config.model_type)
    if kind == ("peagle", "qwen3") and not any(speculators_format.check(case)):
        yield from RULE.by_version(case, "vllm", head.location)
