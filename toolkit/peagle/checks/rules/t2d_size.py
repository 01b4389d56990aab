"""A t2d, which marks the target's tokens that are drafted, without one entry per token.

vLLM does not read t2d, but a head reduced for a different vocabulary has a wrong d2t too.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("t2d-size", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    name, vocabulary = head.named("t2d"), case.architecture.vocab_size
    if name is None or head.config.vocab_size not in (None, vocabulary):
        return
    if head.shape(name) != (vocabulary,):
        message = (
            f"{name} of {head.location} has shape {list(head.tensors[name].shape)}, but "
            f"{case.target.id} has {vocabulary:,} tokens: d2t may be wrong too"
        )
        fix = "compare acceptance with the published value, or export the head again"
        yield RULE.warning("drafter", message, fix)
