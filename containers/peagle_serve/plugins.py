"""Our two plugins for vLLM's CPU build, loaded in all of its processes by the entry points in
``plugin``. A version of vLLM that has other functions stays as it is.

Small layers: with AMX tiles vLLM 0.28.0 sends a layer of at most 1 MiB in 16 bits to
``weight_packed_linear``, which takes a matrix only. ``load_model`` gives a P-EAGLE head's ``fc`` a
single row (``mask_hidden``), so with so small an ``fc`` the engine fails at startup: "IndexError:
Dimension out of range (expected to be in range of [-1, 0], but got -2)". Without that kernel such
layers go to oneDNN, as on other CPUs.

Quick start: vLLM looks at the classes of target and head in a process each, so that this does not
initialize CUDA, and its engine core is a new process for the same reason; each imports vLLM again,
10 s of processor time. A CPU has no CUDA: here the classes are looked at where they are needed, and
the core is a fork of the API server.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from importlib import import_module
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any

_INTERNET = (socket.AF_INET, socket.AF_INET6)


def install_small_layers() -> None:
    """Restrict the SGL kernels to int8, which no other kernel supports."""
    layers = import_module("vllm.model_executor.layers.utils")
    choose = getattr(layers, "check_cpu_sgl_kernel", None)
    if choose is None:
        return  # a version of vLLM without this function
    int8 = import_module("torch").int8

    def choose_for_int8(n: int, k: int, dtype: object) -> bool:
        return dtype is int8 and bool(choose(n, k, dtype))

    vars(layers)["check_cpu_sgl_kernel"] = choose_for_int8


def install_quick_start() -> None:
    """Look at models in this process, and begin the engine core as a fork of it."""
    context = CoreContext()
    _replace("vllm.model_executor.models.registry", "_run_in_subprocess", lambda look: look())
    _replace("vllm.v1.engine.utils", "get_mp_context", lambda: context)


def _replace(module: str, name: str, function: Callable[..., Any]) -> None:
    with contextlib.suppress(ImportError):
        functions = vars(import_module(module))
        if name in functions:
            functions[name] = function


class Core(ForkProcess):
    """A fork without the API server's port, which a new process would not have either."""

    def run(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                close_port(int(name))
        super().run()


class CoreContext(ForkContext):
    """Begins processes as ``Core``."""

    Process = Core


def close_port(descriptor: int) -> None:
    """Close it if it is a TCP socket that is not connected. Raises OSError if it is not open."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        if copy.family not in _INTERNET:
            return
        try:
            copy.getpeername()
        except OSError:
            os.close(descriptor)
