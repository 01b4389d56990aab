"""A context longer than the target supports.

vLLM rejects it at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("context-above-target", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    most, length = case.architecture.max_positions, case.max_model_len
    if length > most:
        message = f"{length:,} tokens exceed the {most:,} that {case.target.id} supports"
        fix = Fix(f"use --max-model-len {most} or less", options=("--max-model-len", f"{most}"))
        yield RULE.error("max_model_len", message, fix)
