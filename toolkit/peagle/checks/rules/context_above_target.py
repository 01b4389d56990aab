"""A context longer than the target supports.

vLLM rejects it at start.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("context-above-target", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    most, length = case.architecture.max_positions, case.max_model_len
    if length > most:
        message = f"{length:,} tokens exceed the {most:,} that {case.target.id} supports"
        yield RULE.error("max_model_len", message, f"use --max-model-len {most} or less")
