"""vLLM's engine core begins as a fork of the API server, which has imported all that it needs.

A plugin for vLLM, with this folder on PYTHONPATH. On a CPU vLLM starts the core as a new process,
which imports vLLM once more: 10 s of processor time for every start of an engine. What runs is the
same. The containers of tests/docker start it as vLLM does.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from multiprocessing.context import ForkContext, ForkProcess


class Core(ForkProcess):
    """A fork without the API server's port, which a new process would not have either."""

    def run(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                close_port(int(name))
        super().run()


class CoreContext(ForkContext):
    Process = Core


def close_port(descriptor: int) -> None:
    """Close it if it is a TCP socket that is bound and not connected."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    with socket.socket(fileno=os.dup(descriptor)) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return
        try:
            found.getpeername()
        except OSError:
            os.close(descriptor)


def install() -> None:
    """From here on, in this process."""
    from vllm.v1.engine import utils

    context = CoreContext()
    utils.get_mp_context = lambda: context
