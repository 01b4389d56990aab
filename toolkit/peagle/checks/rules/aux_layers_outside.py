"""The auxiliary layers are layers of the target, also those that vLLM takes by default.

Layer i is the state after i layers, so 0 to L are there. For one outside vLLM hands over one
hidden state too few, and the engine ends with a request.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checks.facts import auxiliary_layers, location_of, shape_of
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
        f"{location_of(case)}: the head reads layers {', '.join(map(str, layers))} and "
        f"{case.target.id} has {depth}"
    )
    yield error(CODE, "drafter", message, "give a head that was trained for this target")
