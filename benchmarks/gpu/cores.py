"""Which processors a stream of work has for itself, where several GPUs work at the same time."""

from __future__ import annotations

import os


def share(number: int, streams: int) -> list[int]:
    """The processors of stream ``number`` of ``streams``: all of them, where there is one."""
    cpus = sorted(os.sched_getaffinity(0))
    each = max(1, len(cpus) // streams)
    return cpus[number * each : (number + 1) * each] or cpus


def wait_aside() -> list[int]:
    """Keep to the last quarter of this process's processors while another one is measured.

    Returns the rest, to be taken (``os.sched_setaffinity``) when it is this one's turn.
    """
    cpus = sorted(os.sched_getaffinity(0))
    aside = cpus[-max(1, len(cpus) // 4) :]
    os.sched_setaffinity(0, aside)
    return cpus[: -len(aside)] or cpus
