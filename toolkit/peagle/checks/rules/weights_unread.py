"""Weights that cannot be checked because they are not stored as safetensors.

A folder with only config.json has sizes that can be checked, but vLLM cannot serve it. Without
safetensors vLLM loads ``*.bin`` or ``*.pt`` (0.28.0, default_loader.py), which are pickles; the
container of this toolkit refuses them, and so do copies to S3.
"""

import json
from pathlib import PurePath

from peagle.case import Case
from peagle.checkpoints.models import Checkpoint, is_folder
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix

RULE = Rule("weights-unread", about="head", vllm_notices="at start")


def check(case: Case) -> Findings:
    target, head = case.target_checkpoint, case.drafter_checkpoint
    if target is not None and target.tensors is None:
        level = RULE.error if target.other_weights else RULE.warning
        message, fix = _message_and_fix(target)
        yield level("target", message, fix)
    if head is not None and head.tensors is None:
        level = RULE.error if head.other_weights else RULE.warning
        message, fix = _message_and_fix(head)
        yield level("drafter", message, fix)


def _message_and_fix(checkpoint: Checkpoint) -> tuple[str, str | Fix]:
    others = ", ".join(checkpoint.other_weights[:3])
    if others:
        message = (
            f"weights not checked: {checkpoint.location} has {others} but no *.safetensors; other "
            "formats may run code when they are loaded, and are not served"
        )
        return message, _conversion(checkpoint.location, checkpoint.other_weights[0])
    message = f"weights not checked: {checkpoint.location} has no *.safetensors, config.json only"
    return message, "copy the weights there before you serve it"


def _conversion(location: str, file: str) -> Fix:
    """The command that converts to safetensors; ``weights_only`` runs no code of the file. Weights
    in S3 or on the Hub are converted in the folder that they are copied to."""
    folder = location if is_folder(location) and not location.startswith("~") else ""
    source, made = (str(PurePath(folder, name)) for name in (file, "model.safetensors"))
    program = (
        "import torch; from safetensors.torch import save_file; "
        f'tensors = torch.load({json.dumps(source)}, map_location="cpu", weights_only=True); '
        "save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, "
        f"{json.dumps(made)})"
    )
    where = "" if folder else " in their folder"
    sentence = f"convert the weights{where}, with a Python that has torch and safetensors"
    return Fix(sentence, ("python", "-c", program))
