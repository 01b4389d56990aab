"""A line of the engine's output, taken apart: level, process, place, message.

(EngineCore pid=8) INFO 11-20 11:34:26 [core.py:131] Loading    vLLM's own logger
INFO:     127.0.0.1:5000 - "GET /ping HTTP/1.1" 200 OK          uvicorn's
Traceback (most recent call last):                              anything else
"""

from __future__ import annotations

import re

_LEVELS = r"DEBUG|INFO|WARNING|ERROR|CRITICAL"
_LINE = re.compile(
    r"^(?:\((?P<process>[A-Z]\w*(?: pid=\d+)?)\) ?)*"
    rf"(?:(?P<level>{_LEVELS}) \d\d-\d\d \d\d:\d\d:\d\d (?:\[(?P<place>[^\]]*)\] ?)?)?"
    r"(?P<message>.*)$",
    re.DOTALL,
)
_UVICORN = re.compile(rf"^(?P<level>{_LEVELS}):\s+(?P<message>.*)$", re.DOTALL)
_WARNING = re.compile(r"\b\w*Warning: ")
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception)(?::|$)|[\w.]+: error: |Fatal Python error)")
_TRACEBACK = "Traceback (most recent call last):"


class EngineLines:
    """Takes lines apart, one after the other: a traceback goes over many."""

    def __init__(self) -> None:
        self._in_traceback: set[str] = set()

    def fields(self, line: str) -> dict[str, str]:
        """``level`` and ``message``, and ``process`` and ``place`` where the line has them."""
        found = _LINE.match(line)
        assert found is not None, "the pattern takes every line"
        process, level, message = found["process"] or "", found["level"], found["message"]
        fields = {"level": level or "", "message": message.rstrip()}
        if process:
            fields["process"] = process
        if found["place"]:
            fields["place"] = found["place"]
        if not level:
            fields.update(self._unmarked(process, fields["message"]))
        return fields

    def _unmarked(self, process: str, message: str) -> dict[str, str]:
        """Level and message of a line that vLLM's logger did not write."""
        if message.startswith(_TRACEBACK):
            self._in_traceback.add(process)
            return {"level": "ERROR"}
        if process in self._in_traceback:
            if message and not message[0].isspace():
                self._in_traceback.discard(process)
            return {"level": "ERROR"}
        server = _UVICORN.match(message)
        if server:
            return {"level": server["level"], "message": server["message"]}
        if _ERROR.match(message):
            return {"level": "ERROR"}
        return {"level": "WARNING" if _WARNING.search(message) else "INFO"}


def last_on_screen(line: str) -> str:
    """What a terminal would show of a line in which a progress bar was drawn again and again."""
    return line.rstrip("\r").rpartition("\r")[2]
