"""Watermarking with P-EAGLE.

vLLM rejects the combination. Its argument --watermark is unrelated.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule

RULE = Rule("watermarking", about="version", vllm_notices="at start")


def check(case: Case) -> Findings:
    if case.is_parallel and "watermark-config" in case.settings:
        yield from RULE.by_version(case, "vllm", "--watermark-config")
