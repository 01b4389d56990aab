"""A P-EAGLE head with a small ``fc`` in 16 bits on a CPU with AMX tiles.

vLLM runs small layers with a kernel that takes matrices only, but loading a P-EAGLE head calls
``fc`` with a single row. ``peagle_serve`` prevents this with its plugin ``small_layers``.
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
    """A finding when the CPU may have AMX tiles and ``fc`` is small enough."""
    dtype = _dtype_of(case)
    width = _TWO_BYTES.get(dtype)
    if not case.on_cpu or not is_parallel(case) or width is None:
        return
    for entry in entries(case, CODE):
        if isinstance(entry.value, int) and _fc_parameters(case) * width <= entry.value:
            yield version_finding(entry, "dtype", f"P-EAGLE in {dtype} on a CPU")


def _dtype_of(case: Case) -> str:
    """The dtype that vLLM computes in, for the target and the head."""
    requested = str(setting(case, "dtype") or "auto")
    checkpoint = case.target_checkpoint
    if requested != "auto":
        return requested
    if checkpoint is None or is_head(checkpoint.config):
        return case.target.dtype
    return read_dtype(checkpoint.config) or case.target.dtype


def _fc_parameters(case: Case) -> int:
    """The parameters of ``fc``, which maps three hidden states to one."""
    tensor = tensors_of(case).get(_FC)
    return prod(tensor.shape) if tensor else _HIDDEN_STATES * shape_of(case).hidden_size ** 2
