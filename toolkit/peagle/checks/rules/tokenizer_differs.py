"""A head whose tokenizer differs from the target's.

vLLM never reads the head's tokenizer. The head was trained on different token ids from those that
it gets, and nearly no draft is accepted. Different special tokens are only a warning.
"""

from peagle.case import Case
from peagle.checkpoints.reading import same_tokenizer
from peagle.checks.facts import OTHER_HEAD
from peagle.checks.registry import Findings, Rule

RULE = Rule("tokenizer-differs", about="head", vllm_notices="never")


def check(case: Case) -> Findings:
    head, target = case.drafter_checkpoint, case.target_checkpoint
    if head is None or target is None or case.head is None:
        return
    if same_tokenizer(target.tokenizer, head.tokenizer) is not False:
        return
    sizes = head.tokenizer.get("vocab_size"), target.tokenizer.get("vocab_size")
    if None not in sizes and sizes[0] != sizes[1]:
        message = (
            f"{head.location} has a tokenizer of {sizes[0]:,} tokens; the target's has {sizes[1]:,}"
        )
        yield RULE.error("drafter", message, OTHER_HEAD)
    else:
        message = f"the special tokens of {head.location} differ from those of the target"
        yield RULE.warning("drafter", message, f"compare the tokenizers, or {OTHER_HEAD}")
