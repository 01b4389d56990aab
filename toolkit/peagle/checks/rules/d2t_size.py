"""A d2t, which maps drafted tokens to the target's, without one entry per drafted token.

vLLM rejects it when it loads the weights.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import COPY_AGAIN
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("d2t-size", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    name = head.named("d2t")
    config, vocabulary = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size or vocabulary
    if name is not None and head.shape(name) != (drafted,):
        message = (
            f"{name} of {head.location} has shape {list(head.tensors[name].shape)}, but the head "
            f"drafts {drafted:,} tokens"
        )
        yield RULE.error("drafter", message, COPY_AGAIN)
