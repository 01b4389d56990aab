"""The token of the masked slots is one of the vocabulary's.

vLLM looks up its embedding with the first drafts: outside of the table a GPU reads other memory or
the engine ends, after the endpoint is green.
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
    """An error for a token below 0, or not below the size of the vocabulary."""
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
            f"{found[0]} of {location_of(case)} is {found[1]!r}, and the vocabulary has "
            f"{vocabulary:,} tokens, from 0 on"
        )
        fix = "copy the head again, or write the token that it was trained with"
        yield error(CODE, "drafter", message, fix)
