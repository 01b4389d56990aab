"""A head whose weights lack tensors.

vLLM does not require all of a draft head's tensors. Missing ones stay uninitialized: the endpoint
becomes healthy, and nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, tensors_of
from peagle.checks.head_layout import layer_of, layers_in, plain_name, required
from peagle.findings import Finding, error

CODE = "tensors-missing"
ABOUT = "head"
VLLM_NOTICES = "never"

_SHOWN = 3


def check(case: Case) -> Iterator[Finding]:
    """An error that lists the first missing tensors; layers_mismatch reports whole layers."""
    head, tensors = head_of(case), tensors_of(case)
    shapes = required(head) if head else None
    if shapes is None or not tensors:
        return
    found, layers = {plain_name(name) for name in tensors}, layers_in(tensors)
    if any(".qkv_proj" in name or ".gate_up_proj" in name for name in found):
        return
    missing = [name for name in shapes if name not in found and _expected(name, layers)]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        names = ", ".join(missing[:_SHOWN])
        message = f"the weights of {location_of(case)} lack {names}{more}"
        yield error(CODE, "drafter", message, "copy the head again, or export it again")


def _expected(name: str, layers: set[int]) -> bool:
    layer = layer_of(name)
    return layer is None or layer in layers
