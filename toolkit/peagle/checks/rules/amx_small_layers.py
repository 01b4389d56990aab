"""A P-EAGLE head whose ``fc`` is small runs in 16 bits on a CPU with AMX tiles.

There vLLM gives small layers to a kernel that takes a matrix only, and P-EAGLE's ``fc`` gets one
row when the head is loaded. Where ``peagle_serve`` starts vLLM, its plugin ``small_layers``
prevents that.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from peagle.case import Case
from peagle.checkpoints.architecture import read_dtype
from peagle.checkpoints.heads import is_head
from peagle.checks.facts import entries, is_parallel, setting, shape_of, tensors_of, version_finding
from peagle.findings import Finding

CODE = "amx-small-layers"
ABOUT = "version"
VLLM_NOTICES = "at start"

_TWO_BYTES = {"bfloat16": 2, "float16": 2, "half": 2}
_FC = "fc.weight"
_HIDDEN_STATES = 3


def check(case: Case) -> Iterator[Finding]:
    """A finding where the CPU may have such tiles and the head is small enough."""
    dtype = _dtype_of(case)
    width = _TWO_BYTES.get(dtype)
    if not case.on_cpu or not is_parallel(case) or width is None:
        return
    for entry in entries(case, CODE):
        if isinstance(entry.value, int) and _numbers_of_fc(case) * width <= entry.value:
            yield version_finding(entry, "dtype", f"P-EAGLE in {dtype} on a CPU")


def _dtype_of(case: Case) -> str:
    """The type that vLLM computes in; the head takes the target's."""
    asked = str(setting(case, "dtype") or "auto")
    checkpoint = case.target_checkpoint
    if asked != "auto":
        return asked
    if checkpoint is None or is_head(checkpoint.config):
        return case.target.dtype
    return read_dtype(checkpoint.config) or case.target.dtype


def _numbers_of_fc(case: Case) -> int:
    """How many numbers ``fc`` has: it makes one hidden state of three."""
    tensor = tensors_of(case).get(_FC)
    return prod(tensor.shape) if tensor else _HIDDEN_STATES * shape_of(case).hidden_size ** 2
