"""A head with another tokenizer than the target's.

vLLM never reads the head's tokenizer. The head was trained on other token ids than it gets, and
nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.reading import same_tokenizer
from peagle.checks.facts import OTHER_HEAD, head_checkpoint, location_of
from peagle.findings import Finding, error, warning

CODE = "tokenizer-differs"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for another vocabulary size, a warning for other special tokens."""
    head, target = head_checkpoint(case), case.target_checkpoint
    if head is None or target is None or not head.tokenizer or not target.tokenizer:
        return
    if same_tokenizer(target.tokenizer, head.tokenizer) is not False:
        return
    sizes = head.tokenizer.get("vocab_size"), target.tokenizer.get("vocab_size")
    where = location_of(case)
    if None not in sizes and sizes[0] != sizes[1]:
        message = f"{where} has a tokenizer of {sizes[0]:,} tokens; the target's has {sizes[1]:,}"
        yield error(CODE, "drafter", message, OTHER_HEAD)
    else:
        message = f"the special tokens of {where} differ from those of the target"
        yield warning(CODE, "drafter", message, f"compare the tokenizers, or {OTHER_HEAD}")
