"""A target whose weights lack layers or embeddings, or have extra layers.

vLLM rejects missing tensors after it has downloaded and loaded the others, and layers that the
model does not have.
"""

import re
from collections.abc import Iterable, Iterator

from peagle.case import Case
from peagle.checkpoints.models import Checkpoint
from peagle.checks.registry import Findings, Rule

RULE = Rule("target-incomplete", about="target", vllm_notices="at start")

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")
_OTHER_TOWERS = ("vision", "visual", "audio", "mtp", "encoder.")


def check(case: Case) -> Findings:
    checkpoint, depth = case.target_read, case.architecture.layers
    if checkpoint is None or not checkpoint.tensors:
        return
    names = _decoder_tensors(checkpoint.tensors)
    layers = layers_of(names)
    missing = ", ".join(_missing(case, names, layers))
    known = depth + _prediction_layers(checkpoint)
    extra = {layer for layer in layers if layer >= known}
    if missing:
        message = f"the weights at {checkpoint.location} lack {missing}"
    elif extra:
        message = (
            f"the weights at {checkpoint.location} have layers up to {max(extra)}, but "
            f"config.json sets num_hidden_layers to {depth}"
        )
    else:
        return
    fix = "copy the model again: its index, a shard or config.json comes from another model"
    yield RULE.error("target", message, fix)


def layers_of(tensors: Iterable[str]) -> set[int]:
    """The numbers of the decoder layers among these names."""
    return {int(match[1]) for match in map(_LAYER.search, _decoder_tensors(tensors)) if match}


def _decoder_tensors(tensors: Iterable[str]) -> list[str]:
    return [name for name in tensors if not any(part in name for part in _OTHER_TOWERS)]


def _prediction_layers(checkpoint: Checkpoint) -> int:
    """Extra layers for multi-token prediction."""
    layers = checkpoint.config.get("num_nextn_predict_layers")
    return layers if type(layers) is int else 0


def _missing(case: Case, names: list[str], layers: set[int]) -> Iterator[str]:
    absent = sorted(set(range(case.architecture.layers)) - layers)
    if not layers:
        yield "every layer"
    elif absent:
        more = " ..." if len(absent) > 3 else ""
        yield f"layers {', '.join(map(str, absent[:3]))}{more}"
    if not any("embed" in name or "wte" in name for name in names):
        yield "the embeddings"
    if not case.architecture.tied_embeddings and not any("lm_head" in name for name in names):
        yield "lm_head"
