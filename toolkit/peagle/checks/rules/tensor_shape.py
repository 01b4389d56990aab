"""The tensors of the head's layers have the shapes that config.json gives them.

vLLM refuses another shape when it loads the weights. The first layer's attention takes embedding
and hidden state together, so it is twice as wide as the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, stored_width, tensors_of
from peagle.checks.head_layout import differing, own_rule, plain_name, required
from peagle.findings import Finding, error

CODE = "tensor-shape"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error that names the first tensor of another shape, or the number that is wrong of all."""
    head, tensors = head_of(case), tensors_of(case)
    shapes = required(head) if head else None
    if head is None or shapes is None:
        return
    width = stored_width(case)
    if width is not None:
        message = (
            f"config.json of {location_of(case)} says hidden_size {head.hidden_size}, and its "
            f"weights are {width} wide"
        )
        fix = (
            f"set hidden_size to {width}, or copy the head again: config.json and weights are not "
            "of the same head"
        )
        yield error(CODE, "drafter", message, fix)
        return
    wanted = {name: shape for name, shape in shapes.items() if not own_rule(name)}
    found = {plain_name(name): tensor.shape for name, tensor in tensors.items()}
    wrong = differing(wanted, found)
    if wrong:
        name, others = wrong[0], len(wrong) - 1
        more = f", and {others} more like it" if others else ""
        message = (
            f"{name} of {location_of(case)} has the shape {list(found[name])}, and its config.json "
            f"makes it {list(wanted[name])}{more}"
        )
        fix = "copy the head again: config.json and weights are not of the same head"
        yield error(CODE, "drafter", message, fix)
