"""Catalogue entries for models that the catalogue does not have, from their checkpoints.

Sizes come from config.json and the weight headers. What a checkpoint does not say (licence,
acceptance, settings that the model needs) is left out, so that nothing is guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from peagle.catalog import pair_name
from peagle.catalog.schema import Drafter, ProofPrompts, Target
from peagle.checkpoints.architecture import (
    class_name,
    read_architecture,
    read_dtype,
    read_quantization,
)
from peagle.checkpoints.heads import read_attention, read_head, weight_bytes
from peagle.checkpoints.models import Checkpoint, hub_snapshot, is_folder, is_hub_id, split_revision
from peagle.errors import CheckpointError
from peagle_serve.heads import HeadConfig

OWN = "own"
"""The name of a head that is not in the catalogue, and the organization of a target that is neither
there nor on the Hub."""

UNKNOWN_HEAD_K = 5
"""K for a head of which only the checkpoint is known: P-EAGLE's model cards have 5 and more."""

USUAL_CONTEXT = 32_768
"""The default context of a model that is not in the catalogue, if it supports as much: models of
millions of tokens are rarely used for them."""

OLDEST = "0.1.0"
"""``min_vllm`` of a model that is not in the catalogue: the version rules know what it needs."""

_DTYPES = ("bfloat16", "float16", "float32")
_QUANTIZATIONS = ("mxfp4", "fp8", "nvfp4")
_READ = "read from"
"""The beginning of ``source`` of an entry that is not in the catalogue."""

PROOF_PROMPTS = (
    "Explain in simple words why the sky is blue during the day and red in the evening.",
    "Write a Python function for the n-th Fibonacci number without recursion, and explain it.",
    "A train leaves at 9:40 and arrives at 13:05. How long is the journey? Think step by step.",
    "Write a short e-mail that moves a meeting from Tuesday to Thursday and asks for confirmation.",
)
"""The proof's prompts for a target that has none: those of the catalogue's chat models."""


def own_drafter(location: str, target: Target, kind: Drafter, read: Checkpoint | None) -> Drafter:
    """The user's own head at ``location`` as a drafter like ``kind``.

    If its checkpoint was read, it determines sizes and whether the head drafts in parallel; other
    values are those of ``kind``. A ``kind`` that is not public describes this head itself. Only a
    head that is known to be a copy of the catalogue's has a licence. Raises CheckpointError.
    """
    weights, revision = split_revision(location)
    fields: dict[str, Any] = {
        "title": f"your own head {location}",
        "public": True,
        "weights": weights,
        "revision": revision,
        "licence": None,
        "fallback": None,
    }
    unknown = {"name": OWN, "k_trained": None, "published": ()}
    if kind.public:
        fields |= unknown
    if read is not None:
        head = read_head(read.config)
        if head.parallel_drafting != kind.parallel_drafting:
            fields |= unknown
            alike = (drafter for drafter in target.drafters if drafter.method == kind.method)
            same = (
                drafter for drafter in alike if drafter.parallel_drafting == head.parallel_drafting
            )
            kind = next(same, kind)
        fields |= _read_values(head) | {
            "weight_bytes": _stored_bytes(read) or weight_bytes(head) or kind.weight_bytes,
            "attention": read_attention(head) or kind.attention,
        }
    if read is not None and read.pair == pair_name(target, kind):
        fields["licence"] = kind.licence
    elif read is not None and kind.public:  # another head is proved where it pays
        fields["acceptance_floor"] = None
    return kind.model_copy(update=fields | {"source": f"{kind.title} ({kind.source})"})


def drafter_from_checkpoint(read: Checkpoint) -> Drafter:
    """A head known only from its checkpoint. Raises CheckpointError."""
    head = read_head(read.config)
    weights, revision = split_revision(read.location)
    return Drafter(
        name=OWN,
        title=f"the head {read.location}",
        method="eagle3",
        weights=weights,
        revision=revision,
        min_vllm=OLDEST,
        k_recommended=UNKNOWN_HEAD_K,
        source=f"{_READ} {read.location}",
        weight_bytes=_stored_bytes(read) or weight_bytes(head),
        attention=read_attention(head),
        **_read_values(head),
    )


def _read_values(head: HeadConfig) -> dict[str, Any]:
    return {
        "parallel_drafting": head.parallel_drafting,
        "format": "speculators" if head.speculators_format else "vllm",
        "hidden_layers": head.layers,
        "max_positions": head.max_positions,
    }


_NO_TEXT = re.compile(
    r"For(?!CausalLM|ConditionalGeneration)\w*(Classification|Reward|Ranking|Retrieval|MaskedLM|"
    r"Answering|Choice|Extraction|Embedding|PreTraining|CTC)|(?<!LMHead)(?<!Chat)(?<!ChatGLM)Model$"
)
"""Classes of classifiers, rerankers, encoders and models without an output matrix."""


def target_from_checkpoint(read: Checkpoint) -> Target:
    """A target known only from its checkpoint: its sizes, with ``weight_bytes`` 1 where no header
    was read, and no licence. Raises CheckpointError, also for a model that generates no text."""
    name = class_name(read.config)
    unsupported = ("rwkv", "xlstm", "mamba", "falconmamba")
    if name.lower().startswith(unsupported) or read.config.get("is_encoder_decoder") is True:
        raise CheckpointError(
            f"vLLM has no speculative decoding for {name}: it has no attention, or an encoder",
            "use a decoder with attention",
            code="not-estimated",
        )
    if _NO_TEXT.search(name):
        raise CheckpointError(
            f"{name} generates no text: it classifies, ranks or embeds",
            "use a model that generates text; speculative decoding does not speed up others",
            code="generates-no-text",
        )
    shape, dtype = read_architecture(read.config), read_dtype(read.config)
    quantization = read_quantization(read.config)
    target_id, revision = parse_identity(read.location)
    return Target(
        id=target_id,
        short_name=shorten_name(target_id),
        title=target_id.partition("/")[2],
        weights=split_revision(read.location)[0],
        revision=revision or "main",
        licence="",
        weight_bytes=_stored_bytes(read) or 1,
        parameters=count_parameters(read) or 1,
        dtype=dtype if dtype in _DTYPES else "bfloat16",  # type: ignore[arg-type]
        quantization=quantization if quantization in _QUANTIZATIONS else None,  # type: ignore[arg-type]
        min_vllm=OLDEST,
        default_max_model_len=min(shape.max_positions, USUAL_CONTEXT),
        architecture=shape,
        proof=ProofPrompts(
            prompts=PROOF_PROMPTS,
            chat=bool(read.tokenizer and read.tokenizer.has_chat_template),
            max_tokens=128,
        ),
        source=f"{_READ} {read.location}",
    )


def is_from_checkpoint(target: Target) -> bool:
    """Whether the catalogue does not have this target: it is one of ``target_from_checkpoint``."""
    return target.source.startswith(_READ)


def parse_identity(location: str) -> tuple[str, str | None]:
    """The id of the model at ``location``, and its revision: those on the Hub, also of a snapshot
    in the Hub's cache, else ``own/NAME``."""
    snapshot = hub_snapshot(location)
    if snapshot or (is_hub_id(location) and not is_folder(location)):
        return split_revision(snapshot or location)
    name = location.rstrip("/").rpartition("/")[2]
    return f"{OWN}/{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-._') or 'model'}", None


def shorten_name(target_id: str) -> str:
    """The name after the organization, in lower case."""
    return re.sub(r"[^a-z0-9.]+", "-", target_id.partition("/")[2].lower()).strip("-.") or OWN


def count_parameters(read: Checkpoint) -> int | None:
    """The number of parameters by the weight headers, ``None`` without them.

    Packed weights count as many as a tensor's element holds; scales and zero points none.
    """
    quantization = read_quantization(read.config)
    packed = 2 if quantization in ("mxfp4", "nvfp4") else 1
    settings = read.config.get("quantization_config")
    bits = settings.get("bits") if isinstance(settings, Mapping) else None
    in_32 = 32 // bits if type(bits) is int and bits in (2, 4, 8) else 8
    each = {"U8": packed, "I32": in_32 if quantization else 1}
    total = sum(
        math.prod(tensor.shape) * each.get(tensor.dtype, 1)
        for name, tensor in (read.tensors or {}).items()
        if not quantization or (tensor.shape and not re.search("scale|zero|g_idx$", name))
    )
    return total or None


def _stored_bytes(read: Checkpoint) -> int:
    return sum(tensor.size for tensor in (read.tensors or {}).values())
