"""vLLM's engine core begins as a fork of the API server, which has imported all that it needs.

A plugin for vLLM, with this folder on PYTHONPATH. On a CPU vLLM starts the core as a new process,
which imports vLLM once more: 10 s of processor time for every start of an engine. What runs is the
same. The containers of tests/docker start it as vLLM does.
"""

from __future__ import annotations

import multiprocessing


def install() -> None:
    """From here on, in this process."""
    from vllm.v1.engine import utils

    utils.get_mp_context = lambda: multiprocessing.get_context("fork")
