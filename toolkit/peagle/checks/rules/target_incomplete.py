"""A target whose weights lack layers or embeddings, or have extra layers.

vLLM refuses missing tensors after it has downloaded and loaded the others, and layers that the
model does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from peagle.case import Case
from peagle.checkpoints.heads import is_head
from peagle.checkpoints.models import Tensor
from peagle.checks.facts import shape_of
from peagle.findings import Finding, error

CODE = "target-incomplete"
ABOUT = "target"
VLLM_NOTICES = "at start"

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_OTHER_TOWERS = ("vision", "visual", "audio", "mtp", "encoder.")


def check(case: Case) -> Iterator[Finding]:
    """An error that lists the missing layers or matrices, or the extra layers."""
    checkpoint = case.target_checkpoint
    if checkpoint is None or not checkpoint.tensors or is_head(checkpoint.config):
        return
    missing = list(_missing(case, checkpoint.tensors))
    extra = layers_of(checkpoint.tensors) - set(range(_layer_limit(case)))
    fix = "copy the model again: its index, a shard or config.json comes from another model"
    if missing:
        message = f"the weights at {checkpoint.location} lack {', '.join(missing)}"
        yield error(CODE, "target", message, fix)
    elif extra:
        message = (
            f"the weights at {checkpoint.location} have layers up to {max(extra)}, but "
            f"config.json sets num_hidden_layers to {shape_of(case).layers}"
        )
        yield error(CODE, "target", message, fix)


def layers_of(tensors: Iterable[str]) -> set[int]:
    """The numbers of the decoder layers among these names."""
    return {int(match[1]) for match in map(_LAYER.search, _decoder_tensors(tensors)) if match}


def _decoder_tensors(tensors: Iterable[str]) -> list[str]:
    return [name for name in tensors if not any(part in name for part in _OTHER_TOWERS)]


def _layer_limit(case: Case) -> int:
    """The most layers that the weights may have, including multi-token prediction."""
    config = case.target_checkpoint.config if case.target_checkpoint else {}
    more = config.get("num_nextn_predict_layers")
    return shape_of(case).layers + (more if type(more) is int else 0)


def _missing(case: Case, tensors: Mapping[str, Tensor]) -> Iterator[str]:
    text, found = _decoder_tensors(tensors), layers_of(tensors)
    absent = sorted(set(range(shape_of(case).layers)) - found)
    if not found:
        yield "every layer"
    elif absent:
        more = " ..." if len(absent) > 3 else ""
        yield f"layers {', '.join(map(str, absent[:3]))}{more}"
    if not any("embed" in name or "wte" in name for name in text):
        yield "the embeddings"
    if not shape_of(case).tied_embeddings and not any("lm_head" in name for name in text):
        yield "lm_head"
