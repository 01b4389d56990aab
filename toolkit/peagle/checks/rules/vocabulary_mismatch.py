"""The head's vocabulary is the target's.

vLLM does not compare them for an EAGLE-3 head. It drafts tokens that mean something else, or reads
beyond a table: nothing is accepted, or the engine ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, shape_of
from peagle.findings import Finding, error

CODE = "vocabulary-mismatch"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """An error for another size, unless it is the target that is another one."""
    head = head_of(case)
    known = (None, shape_of(case).vocab_size, case.target.architecture.vocab_size)
    if head is None or head.vocab_size in known:
        return
    message = (
        f"{location_of(case)}: the head's vocabulary has {head.vocab_size:,} tokens and that of "
        f"{case.target.id} {shape_of(case).vocab_size:,}"
    )
    yield error(CODE, "drafter", message, "give a head that was trained for this target")
