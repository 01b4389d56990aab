"""A batch has room for the slots that a parallel head adds: K-1 for each request.

vLLM refuses a max-num-batched-tokens that holds no token beside them when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checks.facts import is_parallel, setting
from toolkit.checks.models import Case
from toolkit.findings import Finding, error

CODE = "drafting-slots"
ABOUT = "load"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when the batch is that small."""
    room = setting(case, "max-num-batched-tokens")
    if type(room) is not int or not is_parallel(case) or room > case.k - 1:
        return
    message = (
        f"--max-num-batched-tokens {room} leaves no token beside the {case.k - 1} of K={case.k}"
    )
    fix = "leave it out, or give several thousand"
    yield error(CODE, "max-num-batched-tokens", message, fix)
