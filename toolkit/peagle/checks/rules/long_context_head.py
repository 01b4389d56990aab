"""Long contexts are drafted by the head that was trained on them, and short ones by the other.

The cards name 10,000 tokens. At 100,000 the plain head of Qwen3-Coder gets 1.20 accepted and the
long one 2.19; on short prompts the long one is behind (2.65 and 3.25). vLLM cannot know.
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
"""Tokens from which on the cards of the heads advise the long-context one."""

_SUFFIX = "-long"


def check(case: Case) -> Iterator[Finding]:
    """A word on the pair's other head; a warning above the context that the target has by default.

    Below that a long context is possible, not what the endpoint is for.
    """
    drafter, target, length = case.drafter, case.target, case.max_model_len
    if drafter is None or not is_parallel(case):
        return
    names = {other.name for other in target.drafters}
    plain, long = drafter.name.removesuffix(_SUFFIX), f"{drafter.name}{_SUFFIX}"
    if length > LONG and long in names:
        message = (
            f"{drafter.title} was made for prompts below {LONG:,} tokens; the context has room for "
            f"{length:,}, and of longer prompts it gets less accepted"
        )
        fix = f"fine while prompts are shorter; for longer ones use {target.short_name}+{long}"
        say = warning if length > target.default_max_model_len else note
        yield say(CODE, "drafter", message, fix)
    elif length < LONG and plain != drafter.name and plain in names:
        message = f"the context has {length:,} tokens, and {drafter.title} is for {LONG:,} and more"
        fix = f"use {target.short_name}+{plain}, which gets more accepted there"
        yield note(CODE, "drafter", message, fix)
