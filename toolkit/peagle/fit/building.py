"""Builds the memory model's input from a Case: target, drafter, engine and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from peagle.case import Case
from peagle.catalog.schema import Architecture, AttentionGroup, Drafter, Target
from peagle.catalog.tables import Instance, InstanceTable
from peagle.checkpoints.architecture import (
    decoder_config,
    number,
    optional_number,
    read_architecture,
    read_dtype,
    read_quantization,
)
from peagle.checkpoints.division import is_expert_parallel
from peagle.checkpoints.heads import attention_of, read_head
from peagle.checkpoints.models import Checkpoint, Tensor
from peagle.errors import CheckpointError
from peagle.fit.estimate import is_multimodal, refuse_unknown
from peagle.fit.models import DraftModel, FitCase, GpuMemory, TargetModel, Vision
from peagle.fit.weights import estimate_feed_forward_width
from peagle.vllm.defaults import BLOCK_TOKENS, GPU_MEMORY_UTILIZATION, EngineConfig, batch_limits
from peagle.vllm.gpus import cuda_visible_gib, served_dtype, served_size, visible_gib
from peagle.vllm.prefix_caching import caches_prefixes
from peagle_serve.heads import DEFAULT_AUXILIARY

_PARALLEL_LAYERS = 4
"""Layers of a P-EAGLE head whose catalogue entry has none, as in all published ones."""

_USUAL_HEADS = (8, 128)
"""Number and size of KV heads in most Llama-like decoders."""

_WIDE = 4
"""Feed-forward width in hidden sizes, when neither config nor size of a head is known."""


def gpu_of(instance: Instance) -> GpuMemory:
    """The GPUs of this instance type."""
    visible = visible_gib(instance.gpu, instance.gpu_memory_mib)
    driver = instance.gpu_memory_mib / 1024 - visible
    return GpuMemory(instance, instance.gpu_count, visible, driver)


def gpu_with_memory(table: InstanceTable, gib: float) -> GpuMemory:
    """The GPU whose memory is nearest to ``gib``, with that memory; of two such GPUs the newer."""

    def distance(on: Instance) -> tuple[float, int]:
        visible = visible_gib(on.gpu, on.gpu_memory_mib)
        nearest = min(abs(gib - on.gpu_memory_mib / 1024), abs(gib - visible))
        return nearest, -on.capability

    nearest = min(table.instances, key=distance)
    visible = cuda_visible_gib(gib, nearest.gpu)
    return GpuMemory(nearest, 1, visible, gib - visible)


def fit_case(
    case: Case,
    gpu: GpuMemory,
    *,
    own_matrices: bool | None = None,
    text_only: bool = False,
    compiled: bool = False,
) -> FitCase:
    """The memory model's input for this case on these GPUs.

    vLLM's defaults apply to settings that the case leaves open. ``own_matrices``: whether the head
    has its own embedding and output matrix, when no headers were read. ``compiled``: vLLM's
    compile cache is filled. Raises CheckpointError for an incomplete config.json.
    """
    target, drafter = _models(case, own_matrices)
    settings, vllm = case.settings, case.runtime.vllm
    tokens = settings.get("max-num-batched-tokens")
    limits = case.concurrency, int(tokens) if tokens is not None else None
    memory, on = gpu.visible_gib, gpu.instance
    seqs, step = batch_limits(on.gpu, memory, vllm, case.max_model_len, limits)
    read, block = case.target_checkpoint, case.setting("block-size")
    engine = EngineConfig(
        gpu=on.gpu,
        gpu_count=max(gpu.count, case.tensor_parallel_size),
        gpu_memory_gib=memory,
        driver_gib=gpu.driver_gib,
        capability=on.capability,
        vllm=vllm,
        max_model_len=case.max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=step,
        tensor_parallel_size=case.tensor_parallel_size,
        gpu_memory_utilization=float(
            settings.get("gpu-memory-utilization", GPU_MEMORY_UTILIZATION)
        ),
        kv_cache_dtype=str(settings.get("kv-cache-dtype", "auto")),
        k=case.k if case.drafter else 0,
        enforce_eager=bool(settings.get("enforce-eager")),
        compiled=compiled,
        images=not text_only and not (read and lacks_processor(read, target)),
        draftless=case.drafter.method if case.drafter and drafter is None else None,
        expert_parallel=is_expert_parallel(settings),
        prefix_caching=caches_prefixes(case.settings),
        block_size=block if type(block) is int and block > 0 else BLOCK_TOKENS,
    )
    return FitCase(target, drafter, engine)


def lacks_processor(read: Checkpoint, target: TargetModel) -> bool:
    """Whether the target takes images, but its checkpoint lacks the files to process them."""
    return not read.takes_media and is_multimodal(target)


def _models(case: Case, own_matrices: bool | None) -> tuple[TargetModel, DraftModel | None]:
    """Target and drafter from their checkpoints, else from the catalogue."""
    if case.target_checkpoint:
        with located(case.target_checkpoint):
            target = read_target(case.target_checkpoint)
    else:
        dtype = case.settings.get("dtype")
        target = target_model(case.target, str(dtype) if dtype is not None else None)
    if case.drafter is None:
        return target, None
    if case.drafter_checkpoint:
        with located(case.drafter_checkpoint):
            return target, read_drafter(case.drafter_checkpoint, target, own_matrices)
    drafter = draft_model(case.drafter, target)
    if drafter and own_matrices not in (None, drafter.own_embeddings):
        matrices: dict[str, Any] = {"own_embeddings": own_matrices, "own_output": own_matrices}
        drafter = replace(drafter, checkpoint_bytes=None, **matrices)
    return target, drafter


@contextmanager
def located(read: Checkpoint) -> Iterator[None]:
    """Add the checkpoint's location to its errors."""
    try:
        yield
    except CheckpointError as cause:
        raise type(cause)(
            f"{read.location}: {cause.message}", cause.fix, code=cause.code
        ) from cause


def target_model(target: Target, dtype: str | None = None) -> TargetModel:
    """The catalogue's target; ``dtype`` when it is served in another dtype."""
    served = dtype or served_dtype(target.dtype)
    narrowed = dtype is None and target.dtype == "float32"
    return TargetModel(
        architecture=target.architecture,
        dtype=served,
        quantization=target.quantization,
        checkpoint_bytes=target.weight_bytes // 2 if narrowed else target.weight_bytes,
    )


def read_target(checkpoint: Checkpoint) -> TargetModel:
    """The target in a checkpoint, with its headers if they were read.

    Raises CheckpointError for an incomplete config.json, and for a cache or quantization that the
    memory model does not support.
    """
    refuse_unknown(checkpoint)
    config = checkpoint.config
    text = decoder_config(config)
    quantization = read_quantization(config)
    tensors = served_tensors(checkpoint.tensors or {}, quantization) or None
    return TargetModel(
        architecture=read_architecture(config),
        dtype=read_dtype(config) or "bfloat16",
        quantization=quantization,
        checkpoint_bytes=sum(t.size for t in tensors.values()) if tensors else None,
        tensors=tensors,
        vision=_vision(config),
        attention_bias=bool(text.get("attention_bias") or text.get("qkv_bias")),
        query_key_norm=bool(text.get("use_qk_norm")),
    )


def served_tensors(
    tensors: Mapping[str, Tensor], quantization: str | None = None
) -> dict[str, Tensor]:
    """The tensors in the dtypes of vLLM: wide dtypes are served in 16 bits, except the scales of
    quantized weights."""
    return {
        name: tensor
        if quantization is not None and "scale" in name
        else tensor._replace(dtype=loaded[0], size=loaded[1])
        for name, tensor in tensors.items()
        for loaded in (served_size(tensor.dtype, tensor.size),)
    }


def draft_model(drafter: Drafter, target: TargetModel) -> DraftModel | None:
    """The catalogue's drafter, ``None`` for one without weights.

    Missing values come from the target, the feed-forward width from the size of the weights.
    """
    if drafter.weights is None and not drafter.method.startswith(("eagle", "mtp")):
        return None
    shape = target.architecture
    layers = drafter.hidden_layers or (_PARALLEL_LAYERS if drafter.parallel_drafting else 1)
    like = _like(target)
    attention = drafter.attention
    if not attention and not (drafter.method == "mtp" and drafter.hidden_layers is None):
        # Else it reads the target's cache.
        attention = (like.model_copy(update={"layers": layers}),)
    fields = {
        "layers": layers,
        "intermediate_size": _WIDE * shape.hidden_size,
        "max_positions": drafter.max_positions or shape.max_positions,
        "attention": attention,
    }
    model = _of_shape(
        shape.model_copy(update=fields),
        drafter.attention[0] if drafter.attention else like,
        method=drafter.method,
        parallel_drafting=drafter.parallel_drafting,
        target_hidden_size=shape.hidden_size,
        draft_vocab_size=shape.vocab_size,
        auxiliary=DEFAULT_AUXILIARY,
        own_embeddings=drafter.own_embeddings is not False,
        own_output=drafter.own_embeddings is not False,
        checkpoint_bytes=drafter.weight_bytes or (2 * (drafter.parameters or 0) or None),
    )
    if drafter.method == "eagle3" and model.checkpoint_bytes:
        width = estimate_feed_forward_width(model.checkpoint_bytes // 2, model)
        return replace(model, intermediate_size=min(width, 8 * shape.hidden_size))
    return model


def _of_shape(shape: Architecture, group: AttentionGroup, **more: Any) -> DraftModel:
    """A drafter with the sizes of ``shape`` and the heads of ``group``."""
    return DraftModel(
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        query_heads=shape.query_heads,
        head_dim=group.head_dim,
        kv_heads=group.kv_heads,
        vocab_size=shape.vocab_size,
        max_positions=shape.max_positions,
        attention=shape.attention,
        **more,
    )


def read_drafter(
    checkpoint: Checkpoint, target: TargetModel, own_matrices: bool | None
) -> DraftModel:
    """The EAGLE-3 or P-EAGLE head in a checkpoint.

    ``own_matrices``: whether it has its own embedding and output matrix, if its headers were not
    read; ``None`` assumes that it has. Raises CheckpointError.
    """
    refuse_unknown(checkpoint)
    config, tensors = checkpoint.config, checkpoint.tensors or None
    shape, head = read_architecture(config), read_head(config)
    shape = shape.model_copy(update={"attention": attention_of(head) or shape.attention})

    def has_matrix(name: str) -> bool:
        if tensors is None:
            return own_matrices is not False
        return any(name in tensor for tensor in tensors)

    return _of_shape(
        shape,
        shape.attention[0],
        method="eagle3",
        parallel_drafting=head.parallel_drafting,
        target_hidden_size=head.target_hidden_size or target.architecture.hidden_size,
        draft_vocab_size=head.draft_vocab_size or shape.vocab_size,
        auxiliary=len(head.auxiliary_layers or ()) or head.built_for,
        own_embeddings=has_matrix("embed_tokens"),
        own_output=has_matrix("lm_head"),
        attention_bias="q_proj" in head.biases,
    )


def _like(target: TargetModel) -> AttentionGroup:
    """One full layer with the target's KV heads if they are uniform, else the usual ones."""
    groups = target.architecture.attention
    sizes = {(group.kv_heads, group.head_dim) for group in groups if group.kind != "latent"}
    kv_heads, width = sizes.pop() if len(sizes) == 1 else _USUAL_HEADS
    return AttentionGroup(kind="full", layers=1, kv_heads=kv_heads, head_dim=width)


def _vision(config: Mapping[str, Any]) -> Vision | None:
    tower = config.get("vision_config")
    if not isinstance(tower, Mapping) or not tower.get("num_hidden_layers"):
        return None
    hidden, heads = number(tower, "hidden_size"), number(tower, "num_attention_heads")
    width = optional_number(tower, "head_dim") or hidden // heads
    return Vision(
        layers=number(tower, "num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=number(tower, "intermediate_size"),
        attention_size=heads * width,
        head_dim=width,
        patch_values=3 * (optional_number(tower, "patch_size") or 16) ** 2,
        positions=optional_number(tower, "position_embedding_size") or 0,
    )
