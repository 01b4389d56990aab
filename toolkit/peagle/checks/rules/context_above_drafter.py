"""The context is no longer than the head was made for.

vLLM 0.28.0 drafts nothing as long as one of the running requests is longer: it verifies K empty
slots for every one of them, and says nothing. Older versions were seen to read beyond a table
(issue 48894).
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of
from peagle.checks.rules import context_above_target
from peagle.findings import Finding, warning

CODE = "context-above-drafter"
ABOUT = "load"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A warning above the positions that the head, read or in the catalogue, has."""
    head, drafter = head_of(case), case.drafter
    if drafter is None or any(context_above_target.check(case)):
        return
    most = (head.max_positions if head else None) or drafter.max_positions
    if most is None or case.max_model_len <= most:
        return
    message = (
        f"{drafter.title} was made for {most:,} tokens, and the context may have "
        f"{case.max_model_len:,}"
    )
    fix = f"use --max-model-len {most}, or expect few accepted drafts beyond that"
    yield warning(CODE, "max_model_len", message, fix)
