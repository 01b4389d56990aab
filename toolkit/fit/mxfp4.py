"""GPT-OSS's experts in MXFP4, as the kernels of each GPU hold them.

Two numbers take a byte and 32 share a scale of a byte. vLLM picks the kernels by the GPU and pads
for them (fused_moe/oracle/mxfp4.py, quantization/utils/mxfp4_utils.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import Literal

from toolkit.catalog.models import Architecture
from toolkit.fit.gpus import round_up

BLOCK = 32
"""Numbers that share one scale."""

Kernel = Literal["triton", "trtllm", "marlin"]


def kernel_of(capability: int) -> Kernel:
    """OpenAI's Triton kernels on Hopper, FlashInfer's TensorRT-LLM ones on Blackwell's data-centre
    GPUs, else Marlin."""
    if capability // 10 == 9:
        return "triton"
    return "trtllm" if capability // 10 == 10 else "marlin"


def padded_sizes(kernel: Kernel, hidden: int, intermediate: int) -> tuple[int, int]:
    """Hidden and intermediate size as the kernels want them
    (mxfp4_round_up_hidden_size_and_intermediate_size)."""
    if kernel == "triton":
        return hidden, round_up(intermediate, 64)
    if kernel == "trtllm":
        return round_up(hidden, 256), round_up(intermediate, 256)
    return round_up(hidden, 256), round_up(intermediate, 128)


def mxfp4_expert_tensors(shape: Architecture, tp: int, capability: int) -> Iterator[float]:
    """Bytes of one layer's experts on one of ``tp`` GPUs: values, scales and biases.

    OpenAI's kernels swizzle the scales in tiles of 256 rows and 4 columns; they and TensorRT-LLM's
    keep the biases in float32.
    """
    kernel, experts = kernel_of(capability), shape.experts or 0
    hidden, inter = padded_sizes(kernel, shape.hidden_size, ceil(shape.intermediate_size / tp))
    for rows, columns in ((2 * inter, hidden), (hidden, inter)):
        yield experts * rows * columns // 2
        if kernel == "triton":
            yield experts * round_up(rows, 256) * round_up(ceil(columns / BLOCK), 4)
        else:
            yield experts * rows * columns // BLOCK
        yield experts * rows * (2 if kernel == "marlin" else 4)
