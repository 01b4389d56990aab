"""A P-EAGLE head with a small ``fc`` in 16 bits on a CPU with AMX tiles.

vLLM runs small layers with a kernel that takes matrices only, but loading a P-EAGLE head calls
``fc`` with a single row. ``peagle_serve`` prevents this with its plugin ``peagle-small-layers``.
"""

from math import prod

from peagle.case import Case
from peagle.checkpoints.architecture import read_dtype
from peagle.checks.registry import Findings, Rule
from peagle_serve.heads import DEFAULT_AUXILIARY

RULE = Rule("amx-small-layers", about="version", vllm_notices="at start")

_TWO_BYTES = {"bfloat16": 2, "float16": 2, "half": 2}


def check(case: Case) -> Findings:
    dtype = _dtype_of(case)
    width = _TWO_BYTES.get(dtype)
    if not case.on_cpu or not case.is_parallel or width is None:
        return
    for entry in RULE.entries(case):
        if isinstance(entry.value, int) and _fc_parameters(case) * width <= entry.value:
            yield RULE.of_entry(entry, "dtype", f"P-EAGLE in {dtype} on a CPU")


def _dtype_of(case: Case) -> str:
    """The dtype that vLLM computes in, for the target and the head."""
    requested = str(case.setting("dtype") or "auto")
    if requested != "auto":
        return requested
    stored = read_dtype(case.target_read.config) if case.target_read else None
    return stored or case.target.dtype


def _fc_parameters(case: Case) -> int:
    """The parameters of ``fc``, which maps the auxiliary hidden states to one."""
    shape = case.head.shape("fc.weight") if case.head else None
    return prod(shape) if shape else DEFAULT_AUXILIARY * case.architecture.hidden_size**2
