"""A head for short contexts with long ones, or the long-context head with short ones.

The model cards draw the line at 10,000 tokens. At 100,000 tokens the plain head of Qwen3-Coder has
an acceptance length of 1.20 and the long one 2.19; on short prompts 3.25 and 2.65.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("long-context-head", about="load", vllm_notices="never")

LONG = 10_000
"""Tokens from which the model cards recommend the long-context head."""

_SUFFIX = "-long"


def check(case: Case) -> Findings:
    drafter, target, length = case.drafter, case.target, case.max_model_len
    if drafter is None or not case.is_parallel:
        return
    names = {other.name for other in target.drafters}
    plain, long = drafter.name.removesuffix(_SUFFIX), f"{drafter.name}{_SUFFIX}"
    if length > LONG and long in names:
        message = (
            f"{drafter.title}: for prompts below {LONG:,} tokens; acceptance falls with longer "
            f"prompts, and the context allows {length:,}"
        )
        level = RULE.warning if length > target.default_max_model_len else RULE.note
        sentence = f"for longer prompts use {target.short_name}+{long}"
        yield level("drafter", message, Fix(sentence, options=("--drafter", long)))
    elif length < LONG and plain != drafter.name and plain in names:
        message = f"{drafter.title}: for {LONG:,} tokens or more; the context allows {length:,}"
        sentence = f"use {target.short_name}+{plain}, which has a higher acceptance there"
        yield RULE.note("drafter", message, Fix(sentence, options=("--drafter", plain)))
