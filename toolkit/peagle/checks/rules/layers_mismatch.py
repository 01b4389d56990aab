"""The weights have the layers that config.json announces.

vLLM refuses layers that are too many when it loads them. Layers that are missing stay as the
memory was: it starts, and drafts noise.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import head_of, location_of, tensors_of
from peagle.checks.head_layout import layers_in, required
from peagle.findings import Finding, error

CODE = "layers-mismatch"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error when a layer is missing, or one too many is there."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or not tensors or required(head) is None:
        return
    found, wanted = layers_in(tensors), set(range(head.layers or 0))
    if found == wanted:
        return
    message = (
        f"the weights of {location_of(case)} hold layers {_text(found)}, and its config.json says "
        f"num_hidden_layers {head.layers}"
    )
    fix = "copy the head again: config.json and weights are not of the same head"
    yield error(CODE, "drafter", message, fix)


def _text(layers: set[int]) -> str:
    return ", ".join(map(str, sorted(layers))) or "none"
