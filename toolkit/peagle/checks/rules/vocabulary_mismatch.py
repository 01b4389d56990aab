"""A head with another vocabulary size than the target's.

vLLM does not compare them for EAGLE-3 heads. Drafted ids mean other tokens, or vLLM reads beyond a
table: no draft is accepted, or the engine crashes.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import OTHER_HEAD, head_of, location_of, shape_of
from peagle.findings import Finding, error

CODE = "vocabulary-mismatch"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for another size, unless the target itself is another one."""
    head = head_of(case)
    known = (None, shape_of(case).vocab_size, case.target.architecture.vocab_size)
    if head is None or head.vocab_size in known:
        return
    message = (
        f"{location_of(case)}: the head's vocabulary has {head.vocab_size:,} tokens, that of "
        f"{case.target.id} {shape_of(case).vocab_size:,}"
    )
    yield error(CODE, "drafter", message, OTHER_HEAD)
