"""The weights can be checked: they lie there as safetensors.

A folder with a config.json alone has geometry that can be checked, but vLLM serves nothing from
it. Of other formats nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolkit.checkpoints.models import Checkpoint
from toolkit.checks.models import Case
from toolkit.findings import Finding, warning

CODE = "weights-unread"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A warning for each place whose weights nobody has looked at."""
    places = {"target": case.target_checkpoint, "drafter": case.drafter_checkpoint}
    for where, checkpoint in places.items():
        if checkpoint is not None and checkpoint.tensors is None:
            yield warning(CODE, where, *_words(checkpoint))


def _words(checkpoint: Checkpoint) -> tuple[str, str]:
    others = ", ".join(checkpoint.other_weights[:3])
    if others:
        message = f"weights not checked: {checkpoint.location} has {others}, no *.safetensors"
        return message, "save them as safetensors, which can be read without running anything"
    message = f"weights not checked: {checkpoint.location} has no *.safetensors, config.json only"
    return message, "copy the weights there before it is served"
