"""A head whose weights have tensors that its class does not have.

vLLM refuses such a tensor when it loads the weights, except a bias that config.json does not
mention, which it ignores.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import MIXED_FILES, head_of, location_of, tensors_of
from peagle.checks.head_layout import allowed, layer_of, own_rule, plain_name, required
from peagle.findings import Finding, error

CODE = "tensors-unknown"
ABOUT = "head"
VLLM_NOTICES = "at start"

_SHOWN = 3


def check(case: Case) -> Iterator[Finding]:
    """An error that lists the first unknown tensors; layers_mismatch reports extra layers."""
    head, tensors = head_of(case), tensors_of(case)
    shapes = required(head) if head else None
    if head is None or shapes is None:
        return
    known = allowed(head, shapes)
    unknown = [
        name
        for name in tensors
        if plain_name(name) not in known
        and not own_rule(name)
        and (layer_of(name) or 0) < (head.layers or 0)
        and not _ignored(name)
    ]
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        message = (
            f"the weights of {location_of(case)} have {', '.join(unknown[:_SHOWN])}{more}, which "
            "its class does not have"
        )
        yield error(CODE, "drafter", message, MIXED_FILES)


def _ignored(name: str) -> bool:
    """Whether vLLM skips the tensor, or has it as a merged one."""
    merged = ".qkv_proj" in name or ".gate_up_proj" in name
    return merged or name.endswith("_proj.bias") or name.startswith("input_norm.")
