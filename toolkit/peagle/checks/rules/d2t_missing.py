"""A head with a reduced vocabulary but no d2t, which maps its tokens to the target's.

Without d2t vLLM uses the drafted ids as the target's first tokens, without a warning: the endpoint
becomes healthy, and nearly no draft is accepted.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("d2t-missing", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    drafted, vocabulary = head.config.draft_vocab_size, case.architecture.vocab_size
    if drafted is None or drafted >= vocabulary or "lm_head.weight" not in head.tensors:
        return
    if head.named("d2t") is None:
        message = (
            f"{head.location} drafts {drafted:,} of {vocabulary:,} tokens, but its weights have no "
            "d2t that maps them"
        )
        yield RULE.error("drafter", message, "copy the head again, or export it with d2t")
