"""Auxiliary layers that the target does not have, including those that vLLM uses by default.

Layer i is the hidden state after i layers, so 0 to L exist. For any other layer vLLM passes one
hidden state too few, and the engine crashes on a request.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import OTHER_HEAD, auxiliary_layers, location_of, shape_of
from peagle.findings import Finding, error

CODE = "aux-layers-outside"
ABOUT = "head"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error when one of the layers is below 0 or above the target's depth."""
    layers = auxiliary_layers(case)
    if layers is None:
        return
    depth = shape_of(case).layers
    if all(0 <= layer <= depth for layer in layers):
        return
    message = (
        f"{location_of(case)}: the head reads layers {', '.join(map(str, layers))}, but "
        f"{case.target.id} has {depth}"
    )
    yield error(CODE, "drafter", message, OTHER_HEAD)
