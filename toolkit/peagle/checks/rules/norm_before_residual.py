"""An EAGLE-3 speculators head whose config.json lacks norm_before_residual.

vLLM then assumes true. A head trained with false drafts worse (acceptance length 2.02 instead of
3.07 on the tiny pair), without a warning.
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
    message = f"{location_of(case)} does not set norm_before_residual; vLLM assumes true"
    fix = "if acceptance is below the published value, set it to false, as older heads need"
    yield note(CODE, "drafter", message, fix)
