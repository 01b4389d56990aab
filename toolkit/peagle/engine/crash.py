"""Why an engine ended: the deciding line of its log, and the fix.

The patterns are in ``peagle_serve.crash``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from peagle.errors import EngineError
from peagle.protocol import log_fields, log_text
from peagle_serve import crash as _container
from peagle_serve.crash import Crash

__all__ = ["READ_BYTES", "Crash", "bare_line", "crash_error", "crash_of", "crash_reason",
           "explain_crash", "find_crash"]  # fmt: skip

READ_BYTES = 512 * 1024
"""How much of the end of the log is searched."""

_UNKNOWN = "unknown"


def crash_reason(log: Path | str) -> str:
    """The line of the log that says why the engine ended; "" when it was killed."""
    return crash_of(Path(log)).line


def crash_error(log: Path | str) -> EngineError:
    """The error with the reason why the engine ended, and the fix."""
    crash = crash_of(Path(log))
    reason = crash.line or "killed without a message, perhaps out of memory"
    return EngineError(f"the engine ended: {reason}", crash.fix or f"read the log: {log}")


def crash_of(log: Path) -> Crash:
    """The crash in the file ``log``."""
    try:
        with log.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(max(0, size - READ_BYTES))
            text = stream.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return Crash("")
    return find_crash(text.splitlines())


def find_crash(lines: Iterable[str]) -> Crash:
    """The crash that ``peagle_serve`` reports last; without a report, the first message with a
    known cause, else the last message.

    The lines may come from ``peagle_serve``, from AWS's own container, or from both.
    """
    lines = list(lines)
    reports = [fields for line in lines if (fields := log_fields(line)).get("event") == "crash"]
    if reports and reports[-1].get("cause", _UNKNOWN) != _UNKNOWN:
        last = reports[-1]
        return Crash(str(last["reason"]), str(last.get("fix", "")), str(last["cause"]))
    return _container.find_crash(log_text(line) for line in lines)


def bare_line(line: str) -> str:
    """A line of the log without process, level, date and source location."""
    return _container.bare_line(log_text(line))


def explain_crash(log: Iterable[str]) -> tuple[str, str]:
    """The line of an engine's log that explains its end, and the fix."""
    crash = find_crash(log)
    return crash.line, crash.fix
