"""A draft vocabulary that differs from lm_head or exceeds the target's.

vLLM builds lm_head from draft_vocab_size and rejects weights with a different number of rows; more
tokens than the target has write beyond the logits.
"""

from peagle.case import Case
from peagle.checkpoints.heads import Head
from peagle.checks.facts import OTHER_HEAD, other_shape
from peagle.checks.registry import Findings, Rule, for_head
from peagle_serve.heads import MIXED_FILES

RULE = Rule("draft-vocabulary", about="head", vllm_notices="at start")


@for_head
def check(case: Case, head: Head) -> Findings:
    config, most = head.config, case.architecture.vocab_size
    drafted = config.draft_vocab_size or config.vocab_size or most
    lm_head = head.shape("lm_head.weight")
    if config.vocab_size in (None, most) and drafted > most:
        message = (
            f"{head.location}: the head drafts {drafted:,} tokens, more than the {most:,} of "
            f"{case.target.id}"
        )
        yield RULE.error("drafter", message, OTHER_HEAD)
    elif lm_head not in (None, (drafted, config.hidden_size)) and not config.quantized:
        message = other_shape(head, "lm_head.weight", [drafted, config.hidden_size])
        yield RULE.error("drafter", message, MIXED_FILES)
