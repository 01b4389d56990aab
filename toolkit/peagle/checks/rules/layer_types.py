"""A head whose layer_types do not fit its layers, or need a sliding_window that is not there.

vLLM and transformers reject such a config.json at start.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import COPY_CONFIG
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("layer-types", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    if head.config.window_problem:
        message = f"config.json of {head.location}: {head.config.window_problem}"
        yield RULE.error("drafter", message, COPY_CONFIG)
