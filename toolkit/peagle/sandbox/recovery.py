"""Find the sandbox's processes without their records, which may be damaged.

A process is recognized by its command line and by its environment, which only its user can set.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from peagle.engine.process import EngineProcess, session_members, start_time
from peagle.store import HOME_VARIABLE, home
from peagle_serve.contract import ROOT_VARIABLE

SERVER = ("-m", "peagle.sandbox.server")
"""The daemon's command line, after Python."""


def find_daemon(log: str) -> EngineProcess | None:
    """The living daemon of this home, with port 0, as only its record has the port. The
    environment of a daemon always names its home."""
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


_CONTAINER = "peagle-sandbox-"


def find_engine(leader: int, endpoints: Path) -> EngineProcess | None:
    """The engine, with port 0, whose session ``leader`` leads or led; ``None`` when no process of
    that session is an engine in a folder below ``endpoints``."""
    for pid in session_members(leader, since=0):
        try:
            process = psutil.Process(pid)
            argv, environment = process.cmdline(), process.environ()
            folder = Path(process.cwd())
        except (psutil.Error, OSError):
            continue  # it has ended, or belongs to another user
        container = next((one for one in argv if one.startswith(_CONTAINER)), None)
        if not folder.is_relative_to(endpoints.resolve()):
            continue
        started = start_time(pid)
        if started is not None and (container or ROOT_VARIABLE in environment):
            return EngineProcess(leader, started, 0, str(folder / "engine.log"), container)
    return None
