"""A context longer than the target supports.

vLLM refuses it at start.
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
    """An error above the target's maximum positions."""
    most, length = shape_of(case).max_positions, case.max_model_len
    if length > most:
        message = f"{length:,} tokens exceed the {most:,} that {case.target.id} supports"
        yield error(CODE, "max_model_len", message, f"use --max-model-len {most} or less")
