"""Builds the memory model's input from a Case: target, drafter, engine and GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from peagle.case import Case
from peagle.catalog.schema import Architecture, AttentionGroup, Drafter, Target
from peagle.catalog.tables import Instance, InstanceTable
from peagle.checkpoints.architecture import (
    decoder_config,
    is_expert_parallel,
    number,
    optional_number,
    quantization_settings,
    quantized_weights,
    read_architecture,
    read_dtype,
    read_quantization,
)
from peagle.checkpoints.heads import read_attention, read_head
from peagle.checkpoints.models import Checkpoint, Tensor
from peagle.errors import CheckpointError
from peagle.fit.estimate import FitCase
from peagle.fit.weights import QUANTIZED_BYTES, DraftModel, TargetModel, Vision, stored_parameters
from peagle.vllm.defaults import (
    BLOCK_TOKENS,
    CAPTURE_SIZE,
    GPU_MEMORY_UTILIZATION,
    EngineConfig,
    batch_limits,
    caches_prefixes,
)
from peagle.vllm.gpus import WIDE_BYTES, cuda_visible_gib, served_dtype, visible_gib
from peagle_serve.heads import DEFAULT_AUXILIARY

_PARALLEL_LAYERS = 4
"""Layers of a P-EAGLE head whose catalogue entry has none, as in all published ones."""

_USUAL_HEADS = (8, 128)
"""Number and size of KV heads in most Llama-like decoders."""

_WIDE = 4
"""Feed-forward width in hidden sizes, when neither config nor size of a head is known."""


def nearest_gpu(table: InstanceTable, gib: float, needed: int = 0) -> Instance:
    """The type with the GPU whose memory is nearest to ``gib``, of those with the ``needed``
    capability; of two such GPUs the newer."""

    def distance(on: Instance) -> tuple[float, int]:
        visible = visible_gib(on.gpu, on.gpu_memory_mib)
        nearest = min(abs(gib - on.gpu_memory_mib / 1024), abs(gib - visible))
        return nearest, -on.capability

    return min((on for on in table.instances if on.capability >= needed), key=distance)


def fit_case(
    case: Case,
    gpu: Instance,
    gib: float | None = None,
    *,
    own_matrices: bool | None = None,
    text_only: bool = False,
    compiled: bool = False,
) -> FitCase:
    """The memory model's input for this case on the GPUs of this type, or on one such GPU of
    ``gib``, with vLLM's defaults for settings that the case leaves open. ``own_matrices``: whether
    the head has its own embedding and output matrix, when no headers were read. Raises
    CheckpointError for an incomplete config.json."""
    settings, vllm, read = case.settings, case.runtime.vllm, case.target_checkpoint
    dtype = settings.get("dtype")
    if read:
        with located(read):
            target = read_target(read)
    else:
        target = target_model(case.target, str(dtype) if dtype is not None else None)
    drafter: DraftModel | None = None
    if case.drafter and case.drafter_checkpoint:
        with located(case.drafter_checkpoint):
            drafter = read_drafter(case.drafter_checkpoint, target, own_matrices)
    elif case.drafter:
        drafter = draft_model(case.drafter, target)
        if drafter and own_matrices not in (None, drafter.own_embeddings):
            matrices: dict[str, Any] = {"own_embeddings": own_matrices, "own_output": own_matrices}
            drafter = drafter._replace(checkpoint_bytes=None, **matrices)
    tokens, block = settings.get("max-num-batched-tokens"), case.setting("block-size")
    share = settings.get("gpu-memory-utilization")
    if not isinstance(share, int | float) or share is True or not 0 < share <= 1:
        share = GPU_MEMORY_UTILIZATION  # a rule reports one that is no share
    if gib is None:
        visible, count = visible_gib(gpu.gpu, gpu.gpu_memory_mib), gpu.gpu_count
        gib = gpu.gpu_memory_mib / 1024
    else:
        visible, count = cuda_visible_gib(gib, gpu.gpu), 1
    seqs, step = batch_limits(
        gpu.gpu,
        visible,
        vllm,
        case.max_model_len,
        (case.options.concurrency, int(tokens) if tokens is not None else None),
    )
    lacks_processor = read is not None and not read.takes_media and target.is_multimodal
    engine = EngineConfig(
        gpu=gpu.gpu,
        gpu_count=max(count, case.tensor_parallel_size),
        gpu_memory_gib=visible,
        driver_gib=gib - visible,
        capability=gpu.capability,
        vllm=vllm,
        max_model_len=case.max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=step,
        tensor_parallel_size=case.tensor_parallel_size,
        gpu_memory_utilization=float(share),
        kv_cache_dtype=str(settings.get("kv-cache-dtype", "auto")),
        k=case.k if case.drafter else 0,
        enforce_eager=bool(settings.get("enforce-eager")),
        compiled=compiled,
        images=not text_only and not lacks_processor,
        draftless=case.drafter.method if case.drafter and drafter is None else None,
        expert_parallel=is_expert_parallel(settings),
        prefix_caching=caches_prefixes(settings),
        block_size=block if type(block) is int and block > 0 else BLOCK_TOKENS,
        max_cudagraph_capture_size=read_capture_size(settings),
    )
    return FitCase(target, drafter, engine)


def read_capture_size(settings: Mapping[str, object]) -> int | None:
    """The largest batch with a CUDA graph in an engine's settings; ``None``: vLLM's default."""
    size = settings.get(CAPTURE_SIZE)
    return size if type(size) is int and size > 0 else None


@contextmanager
def located(read: Checkpoint) -> Iterator[None]:
    """Add the checkpoint's location to its errors."""
    try:
        yield
    except CheckpointError as cause:
        message = f"{read.location}: {cause.message}"
        raise type(cause)(message, cause.fix, code=cause.code) from cause


def target_model(target: Target, dtype: str | None = None) -> TargetModel:
    """The catalogue's target; ``dtype`` when it is served in another dtype."""
    narrowed = dtype is None and target.dtype == "float32"
    return TargetModel(
        architecture=target.architecture,
        dtype=dtype or served_dtype(target.dtype),
        quantization=target.quantization,
        checkpoint_bytes=target.weight_bytes // 2 if narrowed else target.weight_bytes,
    )


def unknown_quantization(checkpoint: Checkpoint) -> str | None:
    """The quantization if the fit does not know how vLLM stores its weights."""
    kind = read_quantization(checkpoint.config)
    return kind if kind is not None and kind not in QUANTIZED_BYTES else None


def _refuse_unknown(checkpoint: Checkpoint) -> None:
    kind = unknown_quantization(checkpoint)
    stated = quantized_weights(quantization_settings(checkpoint.config))
    if kind and not stated and not checkpoint.tensors:
        message = f"config.json alone does not show the size of weights quantized with {kind}"
        fix = "use a location that also has the weight files; their headers show it"
        raise CheckpointError(message, fix, "not-estimated")


def read_target(checkpoint: Checkpoint) -> TargetModel:
    """The target in a checkpoint, with the size of its weights if headers were read. Raises
    CheckpointError for an incomplete config.json, and for a cache or quantization that the memory
    model lacks."""
    _refuse_unknown(checkpoint)
    config = checkpoint.config
    text, quantization = decoder_config(config), read_quantization(config)
    shape, tensors = (
        read_architecture(config),
        served_tensors(checkpoint.tensors or {}, quantization),
    )
    tower, vision = config.get("vision_config"), None
    if isinstance(tower, Mapping) and tower.get("num_hidden_layers"):
        hidden, heads = number(tower, "hidden_size"), number(tower, "num_attention_heads")
        width = optional_number(tower, "head_dim") or hidden // heads
        vision = Vision(
            layers=number(tower, "num_hidden_layers"),
            hidden_size=hidden,
            intermediate_size=number(tower, "intermediate_size"),
            attention_size=heads * width,
            head_dim=width,
            patch_values=3 * (optional_number(tower, "patch_size") or 16) ** 2,
            positions=optional_number(tower, "position_embedding_size") or 0,
        )
    return TargetModel(
        architecture=shape,
        dtype=read_dtype(config) or "bfloat16",
        quantization=quantization,
        checkpoint_bytes=sum(t.size for n, t in tensors.items() if _is_loaded(n, shape)) or None,
        vision=vision,
        attention_bias=bool(text.get("attention_bias") or text.get("qkv_bias")),
        query_key_norm=bool(text.get("use_qk_norm")),
    )


_LAYER = re.compile(r"(?:^model|language_model)\.layers\.(\d{1,9})\.")
_OUTPUT = re.compile(r"(^|\.)lm_head\.")


def _is_loaded(name: str, shape: Architecture) -> bool:
    """vLLM loads the layers of multi-token prediction with that method only, and no output matrix
    where the embedding is used."""
    layer = _LAYER.search(name)
    predicts = name.startswith("mtp.") or bool(layer and int(layer[1]) >= shape.layers)
    return not predicts and not (shape.tied_embeddings and _OUTPUT.search(name))


def served_tensors(
    tensors: Mapping[str, Tensor], quantization: str | None = None
) -> dict[str, Tensor]:
    """The tensors in the dtypes of vLLM: wide dtypes are served in 16 bits, except the scales of
    quantized weights."""
    served = dict(tensors)
    for name, tensor in tensors.items():
        width = WIDE_BYTES.get(tensor.dtype)
        if width is not None and (quantization is None or "scale" not in name):
            served[name] = tensor._replace(dtype="BF16", size=tensor.size // width * 2)
    return served


def draft_model(drafter: Drafter, target: TargetModel) -> DraftModel | None:
    """The catalogue's drafter, ``None`` for one without weights. Missing values come from the
    target, the feed-forward width from the size of the weights."""
    if drafter.weights is None and not drafter.method.startswith(("eagle", "mtp")):
        return None
    shape = target.architecture
    layers = drafter.hidden_layers or (_PARALLEL_LAYERS if drafter.parallel_drafting else 1)
    # One full layer with the target's KV heads if they are uniform, else the usual ones.
    sizes = {
        (group.kv_heads, group.head_dim) for group in shape.attention if group.kind != "latent"
    }
    kv_heads, width = sizes.pop() if len(sizes) == 1 else _USUAL_HEADS
    like = AttentionGroup(kind="full", layers=layers, kv_heads=kv_heads, head_dim=width)
    attention = drafter.attention
    if not attention and not (drafter.method == "mtp" and drafter.hidden_layers is None):
        attention = (like,)  # else it reads the target's cache
    group = drafter.attention[0] if drafter.attention else like
    sizes_of_draft = {
        "layers": layers,
        "intermediate_size": _WIDE * shape.hidden_size,
        "max_positions": drafter.max_positions or shape.max_positions,
        "attention": attention,
    }
    model = DraftModel(
        shape=shape.model_copy(update=sizes_of_draft),
        method=drafter.method,
        parallel_drafting=drafter.parallel_drafting,
        head_dim=group.head_dim,
        kv_heads=group.kv_heads,
        target_hidden_size=shape.hidden_size,
        draft_vocab_size=shape.vocab_size,
        auxiliary=DEFAULT_AUXILIARY,
        own_embeddings=drafter.own_embeddings is not False,
        own_output=drafter.own_embeddings is not False,
        checkpoint_bytes=drafter.weight_bytes or (2 * (drafter.parameters or 0) or None),
    )
    if drafter.method == "eagle3" and model.checkpoint_bytes:
        # What its other tensors leave of its size is the feed-forward block.
        others = stored_parameters(with_sizes(model, intermediate_size=0))
        left = model.checkpoint_bytes // 2 - others
        inner = max(left // (3 * shape.hidden_size * layers), shape.hidden_size)
        return with_sizes(model, intermediate_size=min(inner, 8 * shape.hidden_size))
    return model


def with_sizes(drafter: DraftModel, **sizes: int) -> DraftModel:
    """The drafter with other sizes."""
    return drafter._replace(shape=drafter.shape.model_copy(update=sizes))


def read_drafter(
    checkpoint: Checkpoint, target: TargetModel, own_matrices: bool | None
) -> DraftModel:
    """The EAGLE-3 or P-EAGLE head in a checkpoint. ``own_matrices``: whether it has its own
    embedding and output matrix, if its headers were not read; ``None`` assumes that it has. Raises
    CheckpointError."""
    _refuse_unknown(checkpoint)
    config, tensors = checkpoint.config, checkpoint.tensors or None
    shape, head = read_architecture(config), read_head(config)
    shape = shape.model_copy(update={"attention": read_attention(head) or shape.attention})

    def has_matrix(name: str) -> bool:
        if tensors is None:
            return own_matrices is not False
        return any(name in tensor for tensor in tensors)

    return DraftModel(
        shape=shape,
        method="eagle3",
        parallel_drafting=head.parallel_drafting,
        head_dim=shape.attention[0].head_dim,
        kv_heads=shape.attention[0].kv_heads,
        target_hidden_size=head.target_hidden_size or target.architecture.hidden_size,
        draft_vocab_size=head.draft_vocab_size or shape.vocab_size,
        auxiliary=len(head.auxiliary_layers or ()) or head.built_for,
        own_embeddings=has_matrix("embed_tokens"),
        own_output=has_matrix("lm_head"),
        attention_bias="q_proj" in head.biases,
    )
