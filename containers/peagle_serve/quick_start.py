"""A plugin for vLLM's CPU build: a start imports vLLM once and not four times.

vLLM looks at the classes of target and head in a process of its own each, so that looking at them
does not initialize CUDA, and its engine core begins as a new process for the same reason. Each of
these processes imports vLLM again: 10 s of processor time. A CPU has no CUDA: here the classes are
looked at where they are needed, and the core begins as a fork of the API server, which has imported
vLLM.

With a version of vLLM that has other functions, it starts as vLLM itself does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable
from importlib import import_module
from multiprocessing.context import ForkContext, ForkProcess
from typing import Any, TypeVar

_REGISTRY = ("vllm.model_executor.models.registry", "_run_in_subprocess")
_CORE = ("vllm.v1.engine.utils", "get_mp_context")
_INTERNET = (socket.AF_INET, socket.AF_INET6)

_Found = TypeVar("_Found")


def install() -> None:
    """Patch the vLLM of this process."""
    _replace(*_REGISTRY, _run_here)
    context = CoreContext()
    _replace(*_CORE, lambda: context)


def _replace(module: str, name: str, own: Callable[..., Any]) -> None:
    with contextlib.suppress(ImportError):
        found = import_module(module)
        if hasattr(found, name):
            setattr(found, name, own)


def _run_here(look: Callable[[], _Found]) -> _Found:
    return look()


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
    with socket.socket(fileno=os.dup(descriptor)) as found:
        if found.family not in _INTERNET:
            return
        try:
            found.getpeername()
        except OSError:
            os.close(descriptor)
