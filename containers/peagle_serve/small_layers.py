"""A plugin for vLLM's CPU build: small layers use the kernel that works on every CPU.

On a CPU with AMX tiles vLLM 0.28.0 sends a layer of at most 1 MiB in 16 bits to
``weight_packed_linear``, which takes a matrix only. ``load_model`` gives a P-EAGLE head's ``fc``
a single row of numbers (``mask_hidden``), so with so small an ``fc`` the engine fails at startup:
"IndexError: Dimension out of range (expected to be in range of [-1, 0], but got -2)". Without
that kernel such layers go to oneDNN, as the large ones do, and as they do on other CPUs.
"""

from __future__ import annotations

from importlib import import_module

_LAYERS = "vllm.model_executor.layers.utils"
_CHECK_FUNCTION = "check_cpu_sgl_kernel"


def install() -> None:
    """Restrict the SGL kernels to int8, which no other kernel supports."""
    layers = import_module(_LAYERS)
    choose = getattr(layers, _CHECK_FUNCTION, None)
    if choose is None:
        return  # a version of vLLM without this function
    int8 = import_module("torch").int8

    def choose_for_int8(n: int, k: int, dtype: object) -> bool:
        return dtype is int8 and bool(choose(n, k, dtype))

    setattr(layers, _CHECK_FUNCTION, choose_for_int8)
