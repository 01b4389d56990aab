"""A head of another width than the target without its own embeddings.

vLLM shares the target's embeddings when the widths are equal. Otherwise it keeps an uninitialized
table and reports it in one log line: nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of, stored_width, tensors_of
from peagle.checks.rules import hidden_size_mismatch
from peagle.findings import Finding, error

CODE = "embeddings-not-shared"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for a head of another width without embed_tokens."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or not tensors or any("embed_tokens" in name for name in tensors):
        return
    width = shape_of(case).hidden_size
    if head.hidden_size in (None, width, case.target.architecture.hidden_size):
        return
    if stored_width(case) is not None:  # config.json is wrong, the weights are right
        return
    if any(hidden_size_mismatch.check(case)):  # the head of another model
        return
    message = (
        f"{location_of(case)} has no embeddings, and those of {case.target.id} have width "
        f"{width:,}, not {head.hidden_size:,}"
    )
    yield error(CODE, "drafter", message, "export the head with embed_tokens")
