"""Find the sandbox's processes without their records, which may be damaged.

A process is recognized by its command line and by its environment, which only its user can set.
"""

from __future__ import annotations

import psutil

from peagle.engine.process import EngineProcess, start_time
from peagle.store import home

HOME_VARIABLE = "PEAGLE_HOME"
"""Tells the daemon of one home from those of others; its environment always has it."""

SERVER = ("-m", "peagle.sandbox.server")
"""The daemon's command line, after Python."""


def find_daemon(log: str) -> EngineProcess | None:
    """The living daemon of this home, with port 0, as only its record has the port."""
    for process in psutil.process_iter():
        try:
            argv = tuple(process.cmdline())
            if argv[1:3] != SERVER or process.environ().get(HOME_VARIABLE) != str(home()):
                continue
        except (psutil.Error, OSError):
            continue  # it has ended, or belongs to another user
        started = start_time(process.pid)
        if started is not None:
            return EngineProcess(process.pid, started, 0, log)
    return None
