"""An ``fc`` whose input width is not auxiliary layers x the target's width.

vLLM builds ``fc`` from config.json and refuses weights of another shape when it loads them.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import (
    MIXED_FILES,
    head_of,
    location_of,
    shape_of,
    stored_width,
    tensors_of,
)
from peagle.checks.rules import aux_layer_count
from peagle.findings import Finding, error

CODE = "fc-width"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when the shape of fc.weight differs from config.json."""
    head, fc = head_of(case), tensors_of(case).get("fc.weight")
    if head is None or fc is None or head.quantized or not head.uses_auxiliary:
        return
    if head.hidden_size is None or head.target_hidden_size is None:
        return
    expected = (head.hidden_size, head.built_for * head.target_hidden_size)
    if fc.shape == expected or any(aux_layer_count.check(case)) or stored_width(case) is not None:
        return
    width = shape_of(case).hidden_size
    if fc.shape == (head.hidden_size, head.built_for * width):
        message = (
            f"config.json of {location_of(case)} sets target_hidden_size to "
            f"{head.target_hidden_size}, but fc.weight takes {head.built_for} hidden states of "
            f"{width}, the width of {case.target.id}"
        )
        fix = f"set target_hidden_size to {width}, or copy the head again"
        yield error(CODE, "drafter", message, fix)
        return
    message = (
        f"fc.weight of {location_of(case)} has shape {list(fc.shape)}; its config.json "
        f"requires {list(expected)}: {head.built_for} hidden states of {head.target_hidden_size:,}"
    )
    yield error(CODE, "drafter", message, MIXED_FILES)
