"""A context longer than the head supports.

vLLM 0.28.0 drafts nothing while any running request is longer: it verifies K empty slots for each
request, without a warning. Older versions can read beyond a table (issue 48894).
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.checks.rules import context_above_target
from peagle.errors import Fix

RULE = Rule("context-above-drafter", about="load", vllm_notices="never")


def check(case: Case) -> Findings:
    drafter = case.drafter
    if drafter is None or any(context_above_target.check(case)):
        return
    most = (case.head.config.max_positions if case.head else None) or drafter.max_positions
    if most is not None and case.max_model_len > most:
        message = (
            f"{drafter.title}: at most {most:,} tokens; the context allows {case.max_model_len:,}"
        )
        fix = Fix(
            f"use --max-model-len {most}, or expect few accepted drafts in longer requests",
            options=("--max-model-len", f"{most}"),
        )
        yield RULE.warning("max_model_len", message, fix)
