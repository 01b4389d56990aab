"""The head drafts from as many tokens as its config says, and from no more than there are.

vLLM builds lm_head from draft_vocab_size and refuses weights with other rows when it loads them;
more tokens than the target has write beyond the logits.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, error

CODE = "draft-vocabulary"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for a draft vocabulary above the target's, or lm_head with other rows."""
    head = head_of(case)
    if head is None:
        return
    most, where = shape_of(case).vocab_size, location_of(case)
    drafted = head.draft_vocab_size or head.vocab_size or most
    if head.vocab_size in (None, most) and drafted > most:
        message = f"{where}: the head drafts {drafted:,} tokens, more than the {most:,} of "
        fix = "give a head that was trained for this target"
        yield error(CODE, "drafter", message + case.target.id, fix)
        return
    lm_head = tensors_of(case).get("lm_head.weight")
    if lm_head is None or head.quantized or lm_head.shape == (drafted, head.hidden_size):
        return
    message = (
        f"lm_head.weight of {where} has the shape {list(lm_head.shape)}, and its config.json makes "
        f"it {[drafted, head.hidden_size]}"
    )
    fix = "copy the head again: config.json and weights are not of the same head"
    yield error(CODE, "drafter", message, fix)
