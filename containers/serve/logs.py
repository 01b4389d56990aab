"""The container's log: one JSON document a line, each with time, level, stage and message.

    {"time": "2026-11-20T11:34:26.131Z", "level": "INFO", "stage": "starting", "message": "..."}

``stage`` is where the container stands: ``checking``, ``starting``, ``serving``, ``draining``,
``ended``. A line of the engine's own also has ``"from": "engine"``. Everything passes the
redactor. All of it goes to one stream, standard error, so that the order is kept.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence

from serve.engine_lines import EngineLines, last_on_screen
from serve.redaction import Redactor

CHECKING = "checking"
STARTING = "starting"
SERVING = "serving"
DRAINING = "draining"
ENDED = "ended"

LONGEST = 12_000
"""Bytes of a message. Docker cuts a line at 16 KiB, and half a document cannot be read."""
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_KEPT_END = 900
_LINE_ENDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
"""What JSON may hold as it is, and what some readers take for the end of a line."""

_STANDARD_ERROR = 2


class Log:
    """Writes the log. ``stage`` is set by whoever moves the container on."""

    def __init__(self, redactor: Redactor, descriptor: int = _STANDARD_ERROR) -> None:
        self.stage = CHECKING
        self._redactor = redactor
        self._descriptor = descriptor
        self._engine_lines = EngineLines()

    def info(self, message: str, argv: Sequence[str] = (), **more: object) -> None:
        """What goes on; ``argv`` is shown as a list, without secrets. ``more`` holds none."""
        if argv:
            more["argv"] = self._redactor.argv(argv)
        self._write({"level": "INFO", "message": self._plain(message), **more})

    def warning(self, message: str) -> None:
        """What the user should know, and can live with."""
        self._write({"level": "WARNING", "message": self._plain(message)})

    def error(self, message: str, fix: str, **more: object) -> None:
        """What ended the container, and how to mend it."""
        document = {"message": self._plain(message), "fix": self._plain(fix), **more}
        self._write({"level": "ERROR", **document})

    def engine(self, line: str) -> str:
        """A line of the engine's. Gives back what was kept of it, without secrets."""
        shown = self._plain(last_on_screen(_COLOUR.sub("", line)))
        fields = self._engine_lines.fields(shown)
        if fields["message"]:
            level, message = fields.pop("level"), fields.pop("message")
            self._write({"level": level, "message": message, "from": "engine", **fields})
        return shown

    def _plain(self, text: str) -> str:
        text = _shortened(_LINE_ENDS.sub(" ", text))
        return self._redactor.text(text, serving=self.stage not in (CHECKING, STARTING))

    def _write(self, fields: dict[str, object]) -> None:
        moment = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
        head = {"time": f"{stamp}.{int(moment * 1000) % 1000:03}Z", "level": fields.pop("level")}
        line = json.dumps({**head, "stage": self.stage, **fields}, ensure_ascii=False) + "\n"
        rest = line.encode("utf-8", errors="backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            pass  # nobody reads the log any more; serving goes on


def _shortened(text: str) -> str:
    """Without its middle, where it is too long."""
    if len(text) * 6 <= LONGEST:
        return text
    size = len(json.dumps(text, ensure_ascii=False).encode("utf-8", errors="backslashreplace"))
    if size <= LONGEST:
        return text
    kept = LONGEST * len(text) // size - _KEPT_END
    return f"{text[: max(kept, 0) // 2]} ... {text[-_KEPT_END:]}"
