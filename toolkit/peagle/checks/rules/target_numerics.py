"""The target is quantised, and computes, as the one that the head was trained on.

A head reads hidden states. A target with other numerics gives it other ones (4 % of drift was seen
to lose acceptance); vLLM cannot know.
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
    """A warning when type or quantisation differ from the catalogue's target."""
    if not is_eagle(case):
        return
    known = case.target.quantization or case.target.dtype
    real = _asked(case) or _read(case)
    if real is None or real == known:
        return
    message = f"the target computes in {real}, and the head was trained on {case.target.id} in "
    fix = "measure acceptance before relying on it, or serve the target as the catalogue has it"
    yield warning(CODE, "target", message + known, fix)


def _asked(case: Case) -> str | None:
    """A quantisation that the engine makes on its own, from a target that is stored in another."""
    asked = setting(case, "quantization")
    return asked if isinstance(asked, str) else None


def _read(case: Case) -> str | None:
    checkpoint = case.target_checkpoint
    if checkpoint is None or is_head(checkpoint.config):
        return None
    return read_quantization(checkpoint.config) or read_dtype(checkpoint.config)
