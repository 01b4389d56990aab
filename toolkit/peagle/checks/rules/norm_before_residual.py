"""An EAGLE-3 head in the speculators format says where its first norm stands.

Without norm_before_residual vLLM takes true. A head that was trained with false then drafts badly
(2.02 instead of 3.07 accepted on the tiny pair), and nothing tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import config_of, head_of, location_of
from peagle.findings import Finding, note

CODE = "norm-before-residual"
ABOUT = "head"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A note when the key is missing."""
    head = head_of(case)
    if head is None or head.speculators != "eagle3" or CODE.replace("-", "_") in config_of(case):
        return
    message = f"{location_of(case)} does not say norm_before_residual, and vLLM takes true"
    fix = "if less is accepted than was published, write false, which older heads were trained with"
    yield note(CODE, "drafter", message, fix)
