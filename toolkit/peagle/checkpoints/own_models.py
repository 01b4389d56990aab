"""Catalogue entries for the user's own models, made from their checkpoints."""

from __future__ import annotations

import re
from typing import Any

from peagle.catalog.schema import Drafter, ProofPrompts, Target
from peagle.checkpoints.architecture import read_architecture, read_dtype, read_quantization
from peagle.checkpoints.heads import attention_of, read_head, weight_bytes
from peagle.checkpoints.models import Checkpoint, split_revision
from peagle_serve.heads import HeadConfig

OWN = "own"
"""The name of a head, or of a target, that is not in the catalogue."""

_UNKNOWN_HEAD_K = 5
"""K for a head of which only the checkpoint is known: P-EAGLE's model cards have 5 and more."""

_OLDEST = "0.1.0"
"""``min_vllm`` of a model that is not in the catalogue: the version rules know what it needs."""

_DTYPES = ("bfloat16", "float16", "float32")
_QUANTIZATIONS = ("mxfp4", "fp8", "nvfp4")


def own_drafter(location: str, target: Target, kind: Drafter, read: Checkpoint | None) -> Drafter:
    """The user's own head at ``location`` as a drafter like ``kind``.

    If its checkpoint was read, it determines sizes and whether the head drafts in parallel; other
    values are those of ``kind``. A ``kind`` that is not public describes this head itself. Raises
    CheckpointError.
    """
    weights, revision = split_revision(location)
    own: dict[str, Any] = {
        "title": f"your own head {location}",
        "public": True,
        "weights": weights,
        "revision": revision,
        "licence": None,
        "fallback": None,
    }
    unknown = {"name": OWN, "k_trained": None, "published": ()}
    if kind.public:
        own |= unknown
    if read is not None:
        head = read_head(read.config)
        if head.parallel_drafting != kind.parallel_drafting:
            own |= unknown
            alike = (one for one in target.drafters if one.method == kind.method)
            same = (one for one in alike if one.parallel_drafting == head.parallel_drafting)
            kind = next(same, kind)
        stored = sum(tensor.size for tensor in (read.tensors or {}).values())
        own |= _read_values(head) | {
            "weight_bytes": stored or weight_bytes(head) or kind.weight_bytes,
            "attention": attention_of(head) or kind.attention,
        }
    return kind.model_copy(update=own | {"source": f"{kind.title} ({kind.source})"})


def drafter_from_checkpoint(read: Checkpoint) -> Drafter:
    """A head known only from its checkpoint. Raises CheckpointError."""
    head = read_head(read.config)
    return Drafter(
        name=OWN,
        title=f"the head {read.location}",
        method="eagle3",
        min_vllm=_OLDEST,
        k_recommended=_UNKNOWN_HEAD_K,
        source=read.location,
        attention=attention_of(head),
        **_read_values(head),
    )


def _read_values(head: HeadConfig) -> dict[str, Any]:
    return {
        "parallel_drafting": head.parallel_drafting,
        "format": "speculators" if head.speculators_format else "vllm",
        "hidden_layers": head.layers,
        "max_positions": head.max_positions,
    }


def target_from_checkpoint(read: Checkpoint) -> Target:
    """A target known only from its checkpoint. Raises CheckpointError."""
    shape, dtype = read_architecture(read.config), read_dtype(read.config)
    quantization = read_quantization(read.config)
    name = re.sub(r"[^A-Za-z0-9]+", "-", read.location).strip("-") or "target"
    return Target(
        id=f"{OWN}/{name}",
        short_name=OWN,
        title=read.location,
        weights=read.location,
        revision="main",
        licence="",
        weight_bytes=sum(tensor.size for tensor in (read.tensors or {}).values()) or 1,
        parameters=1,
        dtype=dtype if dtype in _DTYPES else "bfloat16",  # type: ignore[arg-type]
        quantization=quantization if quantization in _QUANTIZATIONS else None,  # type: ignore[arg-type]
        min_vllm=_OLDEST,
        default_max_model_len=shape.max_positions,
        architecture=shape,
        default_drafter=OWN,
        drafters=(),
        proof=ProofPrompts(prompts=("",)),
        source=read.location,
    )
