"""A placeholder token outside the vocabulary.

vLLM looks up its embedding with the first drafts: the GPU reads other memory, or the engine
crashes, after the endpoint is healthy.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import placeholder
from peagle.checks.facts import config_of, entries, head_of, is_parallel, location_of, shape_of
from peagle.checks.rules.placeholder_missing import keys
from peagle.findings import Finding, error

CODE = "placeholder-outside-vocabulary"
ABOUT = "head"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error for a token below 0 or at least the vocabulary size."""
    head = head_of(case)
    if head is None or not is_parallel(case):
        return
    vocabulary = shape_of(case).vocab_size
    if head.vocab_size not in (None, vocabulary):
        return
    for entry in entries(case, "placeholder-missing"):
        found = placeholder(config_of(case), keys(head, entry.names))
        if found is None or (type(found[1]) is int and 0 <= found[1] < vocabulary):
            continue
        message = (
            f"{found[0]} of {location_of(case)} is {found[1]!r}; the vocabulary has the ids "
            f"0 to {vocabulary - 1:,}"
        )
        fix = "copy the head again, or set the token it was trained with"
        yield error(CODE, "drafter", message, fix)
