"""vLLM chooses kernels for small layers as on a CPU with AMX tiles, whatever the CPU has.

A plugin for vLLM (with this folder on PYTHONPATH), and a module for scripts of the engine's own
python. Only the choice is made as there: the kernels run on any CPU with AVX-512, and attention
keeps its own. Where the build for this CPU lacks them, torch takes their place, and takes what
they take: a matrix.
"""

from typing import Any
from unittest import mock


def pretend() -> None:
    """From here on, in this process."""
    import torch
    from vllm.model_executor.layers import utils

    choose = utils.check_cpu_sgl_kernel

    def choose_as_with_tiles(n: int, k: int, dtype: Any) -> bool:
        with mock.patch.object(torch.cpu, "_is_amx_tile_supported", return_value=True):
            return bool(choose(n, k, dtype))

    def packed_linear(x: Any, weight: Any, bias: Any, packed: bool) -> Any:
        x.size(-2)  # IndexError where there is one dimension, as in the kernel
        return torch.nn.functional.linear(x, weight, None if bias is None else bias.to(x.dtype))

    utils.check_cpu_sgl_kernel = choose_as_with_tiles
    if not hasattr(torch.ops._C, "weight_packed_linear"):
        torch.ops._C.convert_weight_packed = lambda weight: weight
        torch.ops._C.weight_packed_linear = packed_linear
