"""Timing of whole commands, in alternation, so that changes in load affect all of them equally."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Sequence

ROUNDS = 11


_COMPILES_AGAIN = "PYTHONDONTWRITEBYTECODE"
"""A variable with which each process compiles what it imports, as no installed command does."""


def seconds(command: Sequence[str]) -> float:
    """Wall time of one run, in seconds."""
    environment = {name: value for name, value in os.environ.items() if name != _COMPILES_AGAIN}
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return time.perf_counter() - begin


def medians(*commands: Sequence[str], rounds: int = ROUNDS) -> list[float]:
    """The median wall time of each command, in seconds, after one warm-up round."""
    for command in commands:
        seconds(command)
    taken = [[seconds(command) for command in commands] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*taken, strict=True)]
