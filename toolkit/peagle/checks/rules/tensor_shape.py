"""Layer tensors of the head whose shapes differ from config.json.

vLLM refuses another shape when it loads the weights. The first layer's attention takes embedding
and hidden state side by side, so its inputs are twice as wide.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import MIXED_FILES, head_of, location_of, stored_width, tensors_of
from peagle.checks.head_layout import differing, own_rule, plain_name, required
from peagle.findings import Finding, error

CODE = "tensor-shape"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error that names the first tensor of another shape, or the width of all weights."""
    head, tensors = head_of(case), tensors_of(case)
    shapes = required(head) if head else None
    if head is None or shapes is None:
        return
    width = stored_width(case)
    if width is not None:
        message = (
            f"config.json of {location_of(case)} sets hidden_size to {head.hidden_size}, but "
            f"its weights have width {width}"
        )
        yield error(CODE, "drafter", message, f"set hidden_size to {width}, or {MIXED_FILES}")
        return
    expected = {name: shape for name, shape in shapes.items() if not own_rule(name)}
    found = {plain_name(name): tensor.shape for name, tensor in tensors.items()}
    wrong = differing(expected, found)
    if wrong:
        name, others = wrong[0], len(wrong) - 1
        more = f" ({others} other tensors differ too)" if others else ""
        message = (
            f"{name} of {location_of(case)} has shape {list(found[name])}; its config.json "
            f"requires {list(expected[name])}{more}"
        )
        yield error(CODE, "drafter", message, MIXED_FILES)
