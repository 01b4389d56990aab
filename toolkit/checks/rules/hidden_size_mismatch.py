"""The head takes hidden states of the width that the target has.

vLLM loads a head that was made for another width, and ends with the first request, when it
multiplies the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.facts import head_of, location_of, shape_of
from toolkit.checks.models import Case
from toolkit.findings import Finding, error

CODE = "hidden-size-mismatch"
ABOUT = "head"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error for another width, unless it is the target that is another one."""
    head = head_of(case)
    width = head.target_hidden_size if head else None
    if width in (None, shape_of(case).hidden_size, case.target.architecture.hidden_size):
        return
    message = (
        f"{location_of(case)}: the head takes hidden states of size {width:,} and {case.target.id} "
        f"has {shape_of(case).hidden_size:,}"
    )
    yield error(CODE, "drafter", message, "give a head that was trained for this target")
