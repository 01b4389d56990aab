"""Weights with other layers than num_hidden_layers of config.json.

vLLM refuses extra layers when it loads them. Missing layers stay uninitialized: vLLM starts, and
nearly no draft is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import MIXED_FILES, head_of, location_of, tensors_of
from peagle.checks.head_layout import layers_in, required
from peagle.findings import Finding, error

CODE = "layers-mismatch"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """An error for missing or extra layers."""
    head, tensors = head_of(case), tensors_of(case)
    if head is None or not tensors or required(head) is None:
        return
    found, expected = layers_in(tensors), set(range(head.layers or 0))
    if found == expected:
        return
    message = (
        f"the weights of {location_of(case)} have layers {_layer_list(found)}, but config.json "
        f"sets num_hidden_layers to {head.layers}"
    )
    yield error(CODE, "drafter", message, MIXED_FILES)


def _layer_list(layers: set[int]) -> str:
    return ", ".join(map(str, sorted(layers))) or "none"
