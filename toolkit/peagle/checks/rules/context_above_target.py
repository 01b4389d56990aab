"""The context is no longer than the target can do.

vLLM refuses a longer one when it starts.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import shape_of
from peagle.findings import Finding, error

CODE = "context-above-target"
ABOUT = "load"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error above the positions that the target has."""
    most, length = shape_of(case).max_positions, case.max_model_len
    if length > most:
        message = f"{length:,} tokens are more than the {most:,} that {case.target.id} can do"
        yield error(CODE, "max_model_len", message, f"use --max-model-len {most} or less")
