"""The log of an engine in CloudWatch: its lines, as the endpoint's image writes them."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from moto.logs.models import logs_backends

from peagle.engine_log import log_fields
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.log_metrics import publish_matches
from peagle.store import private_folder

_POLL_SECONDS = 0.05
_EVENT_BYTES = 256 * 1024 - 26
"""PutLogEvents's limit less the 26 bytes that it counts for each event."""


KEPT_EVENTS = 5000
"""Events of a log group; AWS keeps all, but a day of requests must not fill the memory."""
_FIRST_EVENTS = 1000
"""Events kept of each stream: they report the engine's start."""
_KEPT_STREAMS = 100

_REQUEST = re.compile(r'[\d.]+:\d+ - "')
"""The start of uvicorn's line about a request, which has its own form."""


def stock_line(line: str) -> str:
    """A line of the toolkit's entrypoint as AWS's image writes it; "" for one that it has not.

    vLLM's own lines get their usual form back. What rejects or ends the engine stays as a line from
    the sandbox, with its fields: on AWS, vLLM says the same in its own words.
    """
    fields = log_fields(line)
    if not fields:
        return line
    if fields.get("from") != "engine":
        is_note = fields.get("event") in ("refused", "crash", "warning")
        return json.dumps({**fields, "from": "sandbox"}, ensure_ascii=False) if is_note else ""
    message, level = str(fields.get("message", "")), fields.get("level", "INFO")
    process = f"({fields['process']}) " if "process" in fields else ""
    if "place" not in fields:
        server = f"{level}:     " if _REQUEST.match(message) else ""
        return f"{process}{server}{message}"
    when = str(fields["time"])
    place = f"{level} {when[5:7]}-{when[8:10]} {when[11:19]} [{fields['place']}]"
    return f"{process}{place} {message}"


class LogTail:
    """A thread that copies the lines of a file to a log stream until ``end`` is called.

    ``written`` is how a line looks in the stream; "" leaves it out.
    """

    def __init__(
        self,
        file: Path,
        region: str,
        group: str,
        stream: str,
        written: Callable[[str], str] = str,
    ) -> None:
        self._file = file
        self._written = written
        self._group = group
        self._stream = stream
        self._region = region
        self._backend = logs_backends[ACCOUNT][region]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {group}", daemon=True)

    def start(self) -> None:
        """Create the log group and the stream, and copy from the first line on."""
        private_folder(self._file.parent)
        self._file.touch()
        self._backend.ensure_log_group(self._group)
        self._backend.ensure_log_stream(self._group, self._stream)
        self._thread.start()

    def end(self) -> None:
        """Copy the remaining lines and end the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        rest = b""
        with self._file.open("rb") as stream:
            while not self._ended.wait(_POLL_SECONDS):
                rest = self._copy(stream, rest)
            self._put(self._copy(stream, rest).splitlines())

    def _copy(self, stream: BufferedReader, rest: bytes) -> bytes:
        """Copy the complete lines; return the beginning of the next one."""
        *lines, rest = (rest + stream.read()).split(b"\n")
        self._put(lines)
        return rest

    def _put(self, lines: list[bytes]) -> None:
        now = int(time.time() * 1000)
        texts = (
            self._written(line[:_EVENT_BYTES].decode("utf-8", "replace").rstrip()) for line in lines
        )
        events = [{"timestamp": now, "message": text} for text in texts if text]
        if events:
            self._backend.ensure_log_group(self._group)
            self._backend.ensure_log_stream(self._group, self._stream)
            self._backend.put_log_events(self._group, self._stream, events)
            filters = self._backend.filters.get_matching_filters(log_group_name=self._group)
            publish_matches(self._region, filters, events)
            limit_events(self._backend.groups[self._group].streams)


def limit_events(streams: dict[str, Any]) -> None:
    """Remove the oldest streams over the limit, and events over ``KEPT_EVENTS``: from the oldest
    stream on, those after its first ``_FIRST_EVENTS``."""
    for name in list(streams)[:-_KEPT_STREAMS]:
        streams.pop(name, None)
    there = list(streams.values())
    excess = sum(len(stream.events) for stream in there) - KEPT_EVENTS
    for stream in there:
        dropped = min(excess, len(stream.events) - _FIRST_EVENTS)
        if dropped > 0:
            del stream.events[_FIRST_EVENTS : _FIRST_EVENTS + dropped]
            excess -= dropped
