"""A head that reads another number of target layers than its ``fc`` is built for.

vLLM takes the layers from one key of config.json and the width of ``fc`` from another
(num_aux_hidden_states or eagle_config, else 3). When they differ, vLLM starts and crashes on the
first request.
"""

from __future__ import annotations

from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.heads import DEFAULT_AUXILIARY, HeadConfig
from peagle.checks.facts import head_of, location_of
from peagle.findings import Finding, error

CODE = "aux-layer-count"
ABOUT = "head"
VLLM_NOTICES = "on a request"


def check(case: Case) -> Iterator[Finding]:
    """An error when the two numbers differ."""
    head = head_of(case)
    if head is None or not head.uses_auxiliary or read_layers(head) == head.built_for:
        return
    message = (
        f"{location_of(case)} reads {read_layers(head)} layers of the target, but vLLM builds fc "
        f"for {head.built_for}"
    )
    fix = "list the layers in eagle_config.eagle_aux_hidden_state_layer_ids of the head's config"
    yield error(CODE, "drafter", message, fix)


def read_layers(head: HeadConfig) -> int:
    """The number of target layers that vLLM reads for this head."""
    return len(head.auxiliary_layers) if head.auxiliary_layers else DEFAULT_AUXILIARY
