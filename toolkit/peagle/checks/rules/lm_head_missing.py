"""A head without lm_head that cannot use the target's.

vLLM shares the target's. With a reduced vocabulary its rows belong to different tokens, and at a
different width it does not fit.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("lm-head-missing", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    config, vocabulary = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size
    if not head.tensors or head.named("lm_head") or drafted is None:
        return
    if config.vocab_size in (None, vocabulary) and drafted < vocabulary:
        message = f"{head.location} drafts {drafted:,} of {vocabulary:,} tokens but has no lm_head"
        yield RULE.error("drafter", message, "copy the head again, or export it with lm_head")
