"""The log of an engine: its lines, its progress while it starts, and why it ended.

SageMaker starts a container again that has ended. So an engine will never serve only for a cause
that a restart cannot cure; what may be cured counts once a restart has ended in the same way.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from peagle.engine_log import command_in, log_fields, log_text
from peagle.errors import EngineError, Fix
from peagle_serve import crash
from peagle_serve.crash import Crash, bare_line

_SEARCHED_BYTES = 512 * 1024
"""How much of the end of the log is searched for a crash."""

_TAIL_BYTES = 4096
_SEARCHED = 1000
"""Characters of a line that can say something about progress."""
_LONGEST = 100
"""The most characters of a line of progress."""

_INFORMS = re.compile(r"^(\([A-Z]\w*(?: pid=\d+)?\) )*INFO\b")
_PERCENT = re.compile(r"([A-Za-z][\w .,()/-]*?):\s+(\d{1,3})%")
"""A progress bar: ``Loading safetensors checkpoint shards:  50% Completed | 1/2``."""

_SAYS_NOTHING = re.compile(r"non-default args|[\u2580-\u259f]|\"(GET|POST) /")
"""Arguments, vLLM's logo, and requests."""

_ENDS = {"crash": "reason", "refused": "message"}
"""Events with which the entrypoint reports an end, and their field with the reason."""


def read_crash(log: Path | str) -> crash.Crash:
    """The crash in the file ``log`` since the engine was last healthy; its line is "" where the
    supervisor was killed, or nothing crashed."""
    newest = reversed(_last_lines(Path(log), _SEARCHED_BYTES))
    since = [*takewhile(lambda line: _event(log_fields(line)) != "healthy", newest)]
    return find_crash(reversed(since))


def crash_fix(log: Path | str, otherwise: Fix) -> Fix:
    """The known cause of the crash in ``log`` and what it needs, or ``otherwise``."""
    end = read_crash(log)
    return Fix(f"{end.line}: {end.fix}", end.command) if end.cause else otherwise


def crash_error(log: Path | str) -> EngineError:
    """The error with the reason why the engine exited, and the fix."""
    end = read_crash(log)
    reason = end.line or "killed without a message, perhaps out of memory"
    fix = Fix(end.fix, end.command) if end.fix else f"read the log: {log}"
    return EngineError(f"the engine exited: {reason}", fix, "engine-exited")


def find_crash(lines: Iterable[str]) -> crash.Crash:
    """The crash that ``peagle_serve`` reports last, else the first message with a known cause, else
    the last one; from our container or AWS's own."""
    written = [(line, log_fields(line)) for line in lines]
    reports = [fields for _, fields in written if _event(fields) in _ENDS]
    last = reports[-1] if reports else {}
    if isinstance(last.get("cause"), str) and last["cause"] != "unknown":
        reason, fix = (str(last.get(name, "")) for name in (_ENDS[_event(last)], "fix"))
        return crash.Crash(reason, fix, last["cause"], command_in(last))
    return crash.parse_crash(log_text(line) for line, fields in written if "event" not in fields)


def _event(fields: Mapping[str, Any]) -> str:
    event = fields.get("event")
    return event if isinstance(event, str) else ""


def last_line(log: Path) -> str:
    """The last line of the log that says what the engine does."""
    return next(filter(None, map(progress_line, reversed(_last_lines(log, _TAIL_BYTES)))), "")


def progress_line(line: str) -> str:
    """What a line of a starting engine says about its progress, in short; "" for nothing."""
    fields = log_fields(line)
    if "event" in fields:
        return str(fields.get("message", ""))
    text = log_text(line)
    # The end of a line with a bar is its newest state; the patterns take long for long words.
    if percents := _PERCENT.findall(text[-_SEARCHED:]):
        what, percent = percents[-1]
        return f"{what}: {percent}%"
    short = crash.bare_line(text[:_SEARCHED]) if _INFORMS.match(text) else ""
    if _SAYS_NOTHING.search(short):
        return ""
    return short if len(short) <= _LONGEST else f"{short[:_LONGEST]}..."


def _last_lines(log: Path, size: int) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - size))
            return stream.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []


_KEPT_LINES = 4000

_START = re.compile(r"non-default args|API server version")
_END = re.compile(r"Engine core initialization failed|^(vllm serve|[\w.]+): error: ")
_LEVEL = re.compile(r"^(\([^)]*\) )*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_TRACEBACK = re.compile(r"^(\((?P<process>[A-Z]\w*+)[^)]*+\) )?Traceback \(most recent call last\)")
_EXCEPTION = re.compile(r"^(\((?P<process>[A-Z]\w*+)[^)]*+\) )?[\w.]+(Error|Exception)(: |$)")
_SERVER = "APIServer"
"""The process whose uncaught exception ends the container."""

_PERHAPS_CURED = frozenset({"", "unknown", "no-access", "port-in-use"})
"""Causes that need not last: a role gets a permission, a port becomes free."""

_LASTING = re.compile(
    r"^(\w+\.)*(ValueError|TypeError|KeyError|IndexError|AttributeError|AssertionError|NameError"
    r"|NotImplementedError|ModuleNotFoundError|ImportError|ValidationError|AcceleratorError)\b"
    r"|CUDA error"
)
"""Exceptions without a known cause that are raised again at each start."""

_TRANSIENT = re.compile(
    r"Connect(ion)?(Reset|Refused|Aborted)?(Error|Timeout)|ReadTimeout|[Tt]imed out|TimeoutError"
    r"|[Cc]onnection (was )?(reset|refused|aborted|broken)|IncompleteRead|RemoteDisconnected"
    r"|RemoteProtocolError|SSLError|Max retries exceeded|Network is unreachable"
    r"|name resolution|Name or service not known|check your (internet )?connection"
    r"|trying to locate the files? on the Hub|We couldn't connect to|Consistency check failed"
    r"|\b(429|5\d\d) (Client|Server) Error|Too Many Requests|[Tt]hrottl|SlowDown"
    r"|RequestLimitExceeded|ServiceUnavailable|InternalError"
)


class StartLog:
    """The log of one container while it starts, perhaps several times. ``progress`` is the newest
    line that says what it does; ``fatal`` is why it will never serve, once that is known."""

    def __init__(self) -> None:
        self.progress = ""
        self.fatal: Crash | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._by_us = False
        self._traceback_of: str | None = None
        self._ended_by: str | None = None
        self._is_judged = False
        self._previous_end: str | None = None

    def add(self, line: str) -> None:
        """Read one more line, as the container wrote it."""
        fields, text = log_fields(line), log_text(line)
        if fields.get("event") == "start" or _START.search(text):
            if self._ended_by is not None:  # it starts again
                self._lines.clear()
            self._ended_by, self._is_judged, self._traceback_of = None, False, None
        self._lines.append(line)
        self.progress = progress_line(line) or self.progress
        self._by_us = self._by_us or bool(fields)
        if self._by_us:  # our entrypoint reports the end
            if _event(fields) in _ENDS:
                self._ended_by = _SERVER
        elif (writer := self._uncaught(text)) is not None:
            self._ended_by = writer

    def judge(self) -> None:
        """Judge an end whose lines are all there. Call it between two reads of the log: the lines
        of one end may come with several."""
        if self._ended_by is None or self._is_judged:
            return
        self._is_judged = True
        end = self.crash()
        texts = [log_text(line) for line in self._lines]
        errors = [bare_line(text) for text in texts if not _LEVEL.match(text) or "ERROR" in text]
        if any(map(_TRANSIENT.search, errors)):
            return
        is_known = end.cause not in _PERHAPS_CURED
        lasting = self._ended_by == _SERVER and _LASTING.search(end.line)
        again = end.line and end.line == self._previous_end
        if is_known or lasting or again:
            self.fatal = end
        elif self._ended_by == _SERVER:
            self._previous_end = end.line

    def crash(self) -> Crash:
        """The line that explains the end, from what is known now."""
        return find_crash(self._lines)

    def judge_end(self) -> None:
        """Judge the log of a container that has ended, and is not started again."""
        self._ended_by, self._is_judged = _SERVER, False
        self.judge()

    def _uncaught(self, text: str) -> str | None:
        if _END.search(text):
            return _SERVER
        if _LEVEL.match(text):
            return None
        if begun := _TRACEBACK.match(text):
            self._traceback_of = begun["process"] or ""
        elif exception := _EXCEPTION.match(text):
            writer = exception["process"] or ""
            if writer == self._traceback_of and writer in (_SERVER, ""):
                return writer
        return None
