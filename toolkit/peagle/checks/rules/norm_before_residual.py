"""An EAGLE-3 speculators head whose config.json lacks norm_before_residual.

vLLM then assumes true. A head trained with false drafts worse (acceptance length 2.02 instead of
3.07 on the tiny pair), without a warning.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("norm-before-residual", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    if head.config.speculators == "eagle3" and "norm_before_residual" not in head.document:
        message = f"{head.location} does not set norm_before_residual; vLLM assumes true"
        fix = "if acceptance is below the published value, set it to false, as older heads need"
        yield RULE.note("drafter", message, fix)
