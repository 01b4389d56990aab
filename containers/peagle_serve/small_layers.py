"""A plugin for vLLM's CPU build: small layers use the kernel that works on every CPU.

On a CPU with AMX tiles vLLM 0.28.0 sends a layer of at most 1 MiB in 16 bits to
``weight_packed_linear``, which takes a matrix only. ``load_model`` gives a P-EAGLE head's ``fc``
a single row of numbers (``mask_hidden``), so with so small an ``fc`` the engine fails at startup:
"IndexError: Dimension out of range (expected to be in range of [-1, 0], but got -2)". Without
that kernel such layers go to oneDNN, as the large ones do, and as they do on other CPUs.

vLLM loads its plugins in all of its processes, by the entry points in ``plugin``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from peagle_serve import quick_start
from peagle_serve.warm.cache_key import distributions, is_for_cpu

NAME = "peagle-small-layers"
"""The name of the entry point."""

PLUGINS = (NAME, quick_start.NAME)
FOLDER = Path(__file__).resolve().parent / "plugin"
"""The folder of their entry points, for PYTHONPATH."""

_ALLOWED = b"VLLM_PLUGINS"
_LAYERS = "vllm.model_executor.layers.utils"
_CHECK_FUNCTION = "check_cpu_sgl_kernel"


def variables(environment: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """PYTHONPATH and, if set, the list of allowed plugins, with ``PLUGINS`` added.

    Empty unless torch, and so vLLM, is built for the CPU.
    """
    if not is_for_cpu(distributions()):
        return {}
    found = {b"PYTHONPATH": _joined(environment, b"PYTHONPATH", os.pathsep, str(FOLDER))}
    if _ALLOWED in environment:
        found[_ALLOWED] = _joined(environment, _ALLOWED, ",", ",".join(PLUGINS))
    return found


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


def _joined(environment: Mapping[bytes, bytes], name: bytes, separator: str, value: str) -> bytes:
    given = [environment[name]] if environment.get(name) else []
    return os.fsencode(separator).join([*given, os.fsencode(value)])
