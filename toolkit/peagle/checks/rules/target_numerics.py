"""A target with a different dtype or quantization from the one the head was trained on.

A head reads hidden states, which change with the target's numerics (a drift of 4 % lowered
acceptance). vLLM cannot detect it.
"""

from peagle.case import Case
from peagle.checkpoints.architecture import read_dtype, read_quantization
from peagle.checks.registry import Findings, Rule

RULE = Rule("target-numerics", about="target", vllm_notices="never")


def check(case: Case) -> Findings:
    known = case.target.quantization or case.target.dtype
    served = _served(case)
    if case.is_eagle and served not in (None, known):
        message = (
            f"the target is served in {served}; the head was trained on {case.target.id} in {known}"
        )
        yield RULE.warning("target", message, f"measure acceptance, or serve the target in {known}")


def _served(case: Case) -> str | None:
    """The quantization that vLLM applies while it loads the target, else what was read of it."""
    requested = case.setting("quantization")
    if isinstance(requested, str) and requested:
        return requested
    config = case.target_read.config if case.target_read else {}
    return read_quantization(config) or read_dtype(config)
