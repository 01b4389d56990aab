"""A head for short contexts with long ones, or the long-context head with short ones.

The model cards draw the line at 10,000 tokens. At 100,000 tokens the plain head of Qwen3-Coder has
an acceptance length of 1.20 and the long one 2.19; on short prompts 3.25 and 2.65.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import is_parallel
from peagle.findings import Finding, note, warning

CODE = "long-context-head"
ABOUT = "load"
VLLM_NOTICES = "never"

LONG = 10_000
"""Tokens from which the model cards recommend the long-context head."""

_SUFFIX = "-long"


def check(case: Case) -> Iterator[Finding]:
    """A note on the pair's other head; a warning above the target's default context."""
    drafter, target, length = case.drafter, case.target, case.max_model_len
    if drafter is None or not is_parallel(case):
        return
    names = {other.name for other in target.drafters}
    plain, long = drafter.name.removesuffix(_SUFFIX), f"{drafter.name}{_SUFFIX}"
    if length > LONG and long in names:
        message = (
            f"{drafter.title} is for prompts below {LONG:,} tokens; acceptance falls with longer "
            f"prompts, and the context allows {length:,}"
        )
        fix = f"for longer prompts use {target.short_name}+{long}"
        level = warning if length > target.default_max_model_len else note
        yield level(CODE, "drafter", message, fix)
    elif length < LONG and plain != drafter.name and plain in names:
        message = f"the context has {length:,} tokens; {drafter.title} is for {LONG:,} or more"
        fix = f"use {target.short_name}+{plain}, which has a higher acceptance there"
        yield note(CODE, "drafter", message, fix)
