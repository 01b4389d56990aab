"""The system's table of processes: who started when, and who belongs to which session.

Linux: ``/proc/<pid>/stat`` (proc_pid_stat(5)); start times are clock ticks since boot.
Elsewhere: ``ps``; start times are seconds since 1970, and a session is its process group.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_DEAD = "ZX"


@dataclass(frozen=True)
class _Row:
    pid: int
    session: int
    started: int


def start_of(pid: int) -> int | None:
    """When the living process ``pid`` started; ``None`` when there is none (a zombie is none)."""
    if _PROC.joinpath("self/stat").exists():
        row = _linux_row(_PROC / str(pid))
        return row.started if row else None
    return next((row.started for row in _ps_rows("-p", str(pid))), None)


def session(leader: int, since: int) -> tuple[int, ...]:
    """The living processes of the session that ``leader`` leads or led, started at or after
    ``since``."""
    rows = _linux_rows() if _PROC.joinpath("self/stat").exists() else _ps_rows("-A")
    return tuple(row.pid for row in rows if row.session == leader and row.started >= since)


def _linux_rows() -> Iterator[_Row]:
    for folder in _PROC.iterdir():
        row = _linux_row(folder) if folder.name.isdigit() else None
        if row:
            yield row


def _linux_row(folder: Path) -> _Row | None:
    try:
        text = (folder / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The second field is the program's name in brackets, and may hold spaces and brackets.
    fields = text.rpartition(")")[2].split()
    state, session_id, started = fields[0], int(fields[3]), int(fields[19])
    return None if state in _DEAD else _Row(int(folder.name), session_id, started)


def _ps_rows(*selection: str) -> Iterator[_Row]:
    command = ["ps", *selection, "-o", "pid=,pgid=,state=,lstart="]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/bin"}
    )
    for line in done.stdout.splitlines():
        pid, group, state, started = line.split(maxsplit=3)
        if state[0] not in _DEAD:
            when = time.strptime(started, "%a %b %d %H:%M:%S %Y")
            yield _Row(int(pid), int(group), int(time.mktime(when)))
