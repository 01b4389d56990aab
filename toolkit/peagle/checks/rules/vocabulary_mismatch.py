"""A head whose vocabulary size differs from the target's.

vLLM does not compare them for EAGLE-3 heads. Drafted ids stand for different tokens, or vLLM reads
beyond a table: no draft is accepted, or the engine crashes.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import OTHER_HEAD
from peagle.checks.registry import Findings, Rule, for_head

RULE = Rule("vocabulary-mismatch", about="head", vllm_notices="never")


@for_head
def check(case: Case, head: Head) -> Findings:
    own, vocabulary = head.config.vocab_size, case.architecture.vocab_size
    # Another rule reports a wrong target.
    if own not in (None, vocabulary, case.target.architecture.vocab_size):
        message = (
            f"{head.location}: the head's vocabulary has {own:,} tokens, that of {case.target.id} "
            f"{vocabulary:,}"
        )
        yield RULE.error("drafter", message, OTHER_HEAD)
