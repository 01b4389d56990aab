"""The weights hold nothing that the head's class has no place for.

vLLM refuses a tensor that it cannot place when it loads the weights. (A bias of which config.json
says nothing it leaves out in silence.)
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, tensors_of
from peagle.checks.head_layout import allowed, layer_of, own_rule, plain_name, required
from peagle.findings import Finding, error

CODE = "tensors-unknown"
ABOUT = "head"
VLLM_NOTICES = "at start"

_SHOWN = 3


def check(case: Case) -> Iterator[Finding]:
    """An error that names the first unknown tensors; whole layers too many are another rule's."""
    head, tensors = head_of(case), tensors_of(case)
    shapes = required(head) if head else None
    if head is None or shapes is None:
        return
    known = allowed(head, shapes)
    strange = [
        name
        for name in tensors
        if plain_name(name) not in known
        and not own_rule(name)
        and (layer_of(name) or 0) < (head.layers or 0)
        and not _left_out(name)
    ]
    if strange:
        more = f" and {len(strange) - _SHOWN} more" if len(strange) > _SHOWN else ""
        message = (
            f"the weights of {location_of(case)} hold {', '.join(strange[:_SHOWN])}{more}, for "
            "which its class has no place"
        )
        fix = "copy the head again: config.json and weights are not of the same head"
        yield error(CODE, "drafter", message, fix)


def _left_out(name: str) -> bool:
    """Whether vLLM skips it, or knows it under a name of its own."""
    return name.endswith("_proj.bias") or name.startswith("input_norm.") or _merged(name)


def _merged(name: str) -> bool:
    return ".qkv_proj" in name or ".gate_up_proj" in name
