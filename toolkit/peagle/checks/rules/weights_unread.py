"""The weights can be checked: they are stored as safetensors.

A folder with a config.json alone has geometry that can be checked, but vLLM serves nothing from
it. Where there are no safetensors vLLM takes ``*.bin`` or ``*.pt`` (0.28.0, default_loader.py);
only headers of safetensors are read here, so of such a head neither tensors nor shapes are known.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from peagle.case import Case
from peagle.checkpoints.models import Checkpoint
from peagle.findings import Finding, error, warning

CODE = "weights-unread"
ABOUT = "head"
VLLM_NOTICES = "at start"


def check(case: Case) -> Iterator[Finding]:
    """A warning for each location whose weights were not read; an error for a head whose
    weights cannot be read."""
    target, head = case.target_checkpoint, case.drafter_checkpoint
    if target is not None and target.tensors is None:
        yield warning(CODE, "target", *_words(target))
    if head is not None and head.tensors is None:
        level = error if head.other_weights else warning
        yield level(CODE, "drafter", *_words(head))


def _words(checkpoint: Checkpoint) -> tuple[str, str]:
    others = ", ".join(checkpoint.other_weights[:3])
    if others:
        message = (
            f"weights not checked: {checkpoint.location} has {others}, no *.safetensors; vLLM may "
            "load that, but its tensors and shapes cannot be read without unpickling it"
        )
        return message, _converting(checkpoint.other_weights[0])
    message = f"weights not checked: {checkpoint.location} has no *.safetensors, config.json only"
    return message, "copy the weights there before it is served"


def _converting(file: str) -> str:
    """How the weights become safetensors; ``weights_only`` runs no code of the file."""
    program = (
        "import torch; from safetensors.torch import save_file; "
        f'tensors = torch.load({json.dumps(file)}, map_location="cpu", weights_only=True); '
        "save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, "
        '"model.safetensors")'
    )
    return f"convert the weights in their folder: python -c {shlex.quote(program)}"
