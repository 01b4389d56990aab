"""What the log of a starting engine says: its progress, and that it will never serve.

SageMaker starts a container again that has ended, until the time for starting is over. So an engine
will never serve only if it has ended, and for a cause that a restart cannot cure: the model, its
settings, the image, the GPU. An interrupted connection or a throttled request is no such cause.
What may be one, such as a missing permission, counts once a restart has ended in the same way.
"""

from __future__ import annotations

import re
from collections import deque

from peagle.engine.logs import find_crash, progress_line
from peagle.protocol import log_fields, log_text
from peagle_serve.crash import Crash, bare_line

_KEPT_LINES = 4000

_START = re.compile(r"non-default args|API server version")
_END = re.compile(r"Engine core initialization failed|^[\w.]+: error: |^serve: error: ")
_LEVEL = re.compile(r"^(\([^)]*\) )*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_TRACEBACK = re.compile(r"^(\((?P<process>[A-Z]\w*)[^)]*\) )?Traceback \(most recent call last\)")
_EXCEPTION = re.compile(r"^(\((?P<process>[A-Z]\w*)[^)]*\) )?[\w.]+(Error|Exception)(: |$)")
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
        line = line.removeprefix("sandbox: ")
        fields, text = log_fields(line), log_text(line)
        if fields.get("event") == "start" or _START.search(text):
            self._begin()
        self._lines.append(line)
        self.progress = progress_line(line) or self.progress
        self._by_us = self._by_us or bool(fields)
        if self._by_us:  # our entrypoint reports the end
            if fields.get("event") in ("crash", "refused"):
                self._ended_by = _SERVER
        elif (writer := self._uncaught(text)) is not None:
            self._ended_by = writer

    def settle(self) -> None:
        """Judge an end whose lines are all there. Call it between two reads of the log: the lines
        of one end may come with several."""
        if self._ended_by is None or self._is_judged:
            return
        self._is_judged = True
        found = self.crash()
        if any(_TRANSIENT.search(line) for line in self._errors()):
            return
        known = found.cause not in _PERHAPS_CURED
        lasting = self._ended_by == _SERVER and _LASTING.search(found.line)
        again = found.line and found.line == self._previous_end
        if known or lasting or again:
            self.fatal = found
        elif self._ended_by == _SERVER:
            self._previous_end = found.line

    def crash(self) -> Crash:
        """The line that explains the end, from what is known now."""
        return find_crash(self._lines)

    def judge_end(self) -> None:
        """Judge the log of a container that has ended, and is not started again."""
        self._ended_by, self._is_judged = _SERVER, False
        self.settle()

    def _begin(self) -> None:
        """The container starts, perhaps again."""
        if self._ended_by is not None:
            self._lines.clear()
        self._ended_by, self._is_judged, self._traceback_of = None, False, None

    def _uncaught(self, text: str) -> str | None:
        """The process that this line ends: "" for one that gives no name."""
        if _END.search(text):
            return _SERVER
        if _LEVEL.match(text):
            return None
        if begun := _TRACEBACK.match(text):
            self._traceback_of = begun["process"] or ""
        elif found := _EXCEPTION.match(text):
            writer = found["process"] or ""
            if writer == self._traceback_of and writer in (_SERVER, ""):
                return writer
        return None

    def _errors(self) -> list[str]:
        """The lines that are not of a level below an error."""
        texts = [log_text(line) for line in self._lines]
        return [bare_line(one) for one in texts if not _LEVEL.match(one) or "ERROR" in one]
