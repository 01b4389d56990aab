"""A context longer than the head supports.

vLLM 0.28.0 drafts nothing while any running request is longer: it verifies K empty slots for each
request, without a warning. Older versions can read beyond a table (issue 48894).
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
    """A warning above the maximum positions of the head, as read or from the catalogue."""
    head, drafter = head_of(case), case.drafter
    if drafter is None or any(context_above_target.check(case)):
        return
    most = (head.max_positions if head else None) or drafter.max_positions
    if most is None or case.max_model_len <= most:
        return
    message = f"{drafter.title} supports {most:,} tokens; the context allows {case.max_model_len:,}"
    fix = f"use --max-model-len {most}, or expect few accepted drafts in longer requests"
    yield warning(CODE, "max_model_len", message, fix)
