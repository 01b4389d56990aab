"""A draft vocabulary that differs from lm_head or exceeds the target's.

vLLM builds lm_head from draft_vocab_size and refuses weights with another number of rows; more
tokens than the target has write beyond the logits.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import MIXED_FILES, OTHER_HEAD, head_of, location_of, shape_of, tensors_of
from peagle.findings import Finding, error

CODE = "draft-vocabulary"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for a draft vocabulary above the target's, or another shape of lm_head."""
    head = head_of(case)
    if head is None:
        return
    most, where = shape_of(case).vocab_size, location_of(case)
    drafted = head.draft_vocab_size or head.vocab_size or most
    if head.vocab_size in (None, most) and drafted > most:
        message = (
            f"{where}: the head drafts {drafted:,} tokens, more than the {most:,} of "
            f"{case.target.id}"
        )
        yield error(CODE, "drafter", message, OTHER_HEAD)
        return
    lm_head = tensors_of(case).get("lm_head.weight")
    if lm_head is None or head.quantized or lm_head.shape == (drafted, head.hidden_size):
        return
    message = (
        f"lm_head.weight of {where} has shape {list(lm_head.shape)}; its config.json requires "
        f"{[drafted, head.hidden_size]}"
    )
    yield error(CODE, "drafter", message, MIXED_FILES)
