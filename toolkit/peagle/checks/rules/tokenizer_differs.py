"""A tokenizer that the head brings is the target's.

vLLM never reads it. A head with another one was trained on other tokens than it is given, and
nearly nothing is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.reading import same_tokenizer
from peagle.checks.facts import location_of, read
from peagle.findings import Finding, error, warning

CODE = "tokenizer-differs"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for a vocabulary of another size, a warning for ids that mean something else."""
    head, target = read(case), case.target_checkpoint
    if head is None or target is None or not head.tokenizer or not target.tokenizer:
        return
    if same_tokenizer(target.tokenizer, head.tokenizer) is not False:
        return
    sizes = head.tokenizer.get("vocab_size"), target.tokenizer.get("vocab_size")
    fix = "give a head that was trained for this target"
    where = location_of(case)
    if None not in sizes and sizes[0] != sizes[1]:
        message = f"{where} has a tokenizer of {sizes[0]:,} tokens, and the target's has "
        yield error(CODE, "drafter", f"{message}{sizes[1]:,}", fix)
    else:
        message = f"{where} has a tokenizer in which other tokens are special than in the target's"
        yield warning(CODE, "drafter", message, f"compare the two, or {fix}")
