"""The numbers of GPUs among which vLLM can divide a target, and why it refuses others.

Blocks of quantized weights share a scale, so a GPU's share of a projection must be whole blocks.
vLLM 0.28.0 lets the columns of merged projections be ragged (linear.py:515), but not the rows of
output and down projections (fp8_utils.py:1216), and nothing of experts (fp8.py:534 and 540).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from peagle.catalog.schema import Architecture
from peagle.vllm.gpus import parallel_sizes

EXPERT_PARALLEL = "enable-expert-parallel"
"""vLLM's argument that gives each GPU whole experts instead of a share of every expert."""

_SMALLEST_GROUP = 32
"""Groups of experts are halved down to this size (moe_wna16.py:263)."""


def is_expert_parallel(settings: Mapping[str, Any]) -> bool:
    """Whether these arguments of vLLM give each GPU whole experts."""
    return str(settings.get(EXPERT_PARALLEL)).lower() in ("true", "1")


def divisions(shape: Architecture, gpus: int, expert_parallel: bool = False) -> list[int]:
    """The tensor-parallel sizes up to ``gpus`` that a target of this shape supports; the smallest
    that divides the heads where vLLM refuses each, so that a finding can name it."""
    sizes = sizes_of_heads(shape, gpus)
    return [s for s in sizes if division_problem(shape, s, expert_parallel) is None] or sizes[:1]


def sizes_of_heads(shape: Architecture, gpus: int) -> list[int]:
    """The sizes that divide the attention heads."""
    return parallel_sizes(shape.query_heads, (group.kv_heads for group in shape.attention), gpus)


def division_problem(shape: Architecture, size: int, expert_parallel: bool = False) -> str | None:
    """Why vLLM cannot divide the weights among ``size`` GPUs, in one clause; ``None`` if it can."""
    return next(_problems(shape, size, expert_parallel), None)


def _problems(shape: Architecture, size: int, expert_parallel: bool) -> Iterator[str]:
    latent, quantized = shape.latent, shape.quantized
    per_head = latent.value_dim if latent else max((g.head_dim for g in shape.attention), default=0)
    # Inputs of the projections that are divided by rows.
    widths = {"attention's output": shape.query_heads * per_head}
    if shape.shared_expert_size:
        widths["the shared expert"] = shape.shared_expert_size
    dense = shape.dense_intermediate_size if shape.experts else shape.intermediate_size
    if dense and shape.blocks:
        widths["the feed-forward block"] = dense
    if shape.experts:
        whole = expert_parallel and size > 1
        widths["the experts"] = shape.intermediate_size * (size if whole else 1)
        if whole and shape.experts < size:
            yield f"there are only {shape.experts} experts"
    divided = [*widths.items()]
    divided += [("the recurrent layers", n) for group in shape.recurrent for n in group.divided]
    for what, width in divided:
        if width % size:
            yield f"{what}: {width:,} is no multiple of {size} (vLLM 0.28.0)"
    if quantized is None:
        return
    rows, columns = quantized.block_rows, quantized.block_columns or 1

    def problem(what: str, width: int, block: int, source: str) -> str:
        return (
            f"{what}: {width:,} / {size} = {width // size:,} is no multiple of the quantization "
            f"block of {block} (vLLM 0.28.0 {source})"
        )

    for what, width in widths.items():
        share = width // size
        if what == "the experts":
            if rows and share % rows:
                yield problem(what, width, rows, "fp8.py:534")
            elif rows and size > 1 and share % columns:
                yield problem(what, width, columns, "fp8.py:540")
            elif quantized.whole_groups and share % columns:
                yield problem(what, width, columns, "compressed_tensors_moe_wna16.py:304")
            elif not rows and share % min(columns, _SMALLEST_GROUP):
                yield problem(what, width, min(columns, _SMALLEST_GROUP), "moe_wna16.py:263")
        elif size > 1 and share % columns and (what != "attention's output" or quantized.attention):
            source = "fp8_utils.py:1216" if rows else "distributed/utils.py:74"
            yield problem(what, width, columns, source)
    if latent and rows and quantized.attention and size > 1:
        # q_b_proj and kv_b_proj: one matrix each, divided by columns.
        for width in (latent.nope_dim + latent.rope_dim, latent.nope_dim + latent.value_dim):
            columns_of_all = shape.query_heads * width
            if columns_of_all // size % rows:
                yield problem("latent attention", columns_of_all, rows, "fp8_utils.py:1236")
