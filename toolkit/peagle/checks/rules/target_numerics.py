"""A target with another dtype or quantization than the one the head was trained on.

A head reads hidden states, which change with the target's numerics (a drift of 4 % lowered
acceptance). vLLM cannot detect it.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.architecture import read_dtype, read_quantization
from peagle.checkpoints.heads import is_head
from peagle.checks.facts import is_eagle, setting
from peagle.findings import Finding, warning

CODE = "target-numerics"
ABOUT = "target"
VLLM_NOTICES = "never"


def check(case: Case) -> Iterator[Finding]:
    """A warning when dtype or quantization differ from the catalogue's target."""
    if not is_eagle(case):
        return
    known = case.target.quantization or case.target.dtype
    real = _requested(case) or _read(case)
    if real is None or real == known:
        return
    message = f"the target computes in {real}; the head was trained on {case.target.id} in "
    fix = f"measure acceptance, or serve the target in {known}"
    yield warning(CODE, "target", message + known, fix)


def _requested(case: Case) -> str | None:
    """The quantization that vLLM applies while it loads the target."""
    value = setting(case, "quantization")
    return value if isinstance(value, str) else None


def _read(case: Case) -> str | None:
    checkpoint = case.target_checkpoint
    if checkpoint is None or is_head(checkpoint.config):
        return None
    return read_quantization(checkpoint.config) or read_dtype(checkpoint.config)
