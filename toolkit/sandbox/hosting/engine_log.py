"""An engine's log file in CloudWatch Logs, line by line, as it grows."""

from __future__ import annotations

import threading
import time
from io import BufferedReader
from pathlib import Path

from moto.logs.models import logs_backends

from toolkit.sandbox.client import ACCOUNT

_POLL_SECONDS = 0.2
_LONGEST_EVENT = 256 * 1024 - 26
"""Bytes; the limit of PutLogEvents less its own 26."""


def group_of(endpoint: str) -> str:
    """The log group that SageMaker gives an endpoint."""
    return f"/aws/sagemaker/Endpoints/{endpoint}"


class LogTail:
    """A thread that copies the lines of a file into a log stream until it is told to end."""

    def __init__(self, file: Path, region: str, endpoint: str, stream: str) -> None:
        self._file = file
        self._group = group_of(endpoint)
        self._stream = stream
        self._backend = logs_backends[ACCOUNT][region]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"log {endpoint}", daemon=True)

    def start(self) -> None:
        """Begin, with the file's first line. Makes the group and the stream."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch()
        self._backend.ensure_log_group(self._group)
        self._backend.ensure_log_stream(self._group, self._stream)
        self._thread.start()

    def end(self) -> None:
        """Copy what is still to come and end."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        rest = b""
        with self._file.open("rb") as stream:
            while not self._ended.wait(_POLL_SECONDS):
                rest = self._copy(stream, rest)
            self._put((self._copy(stream, rest)).splitlines())

    def _copy(self, stream: BufferedReader, rest: bytes) -> bytes:
        """Copy the whole lines that are there; give back the beginning of the next one."""
        *lines, rest = (rest + stream.read()).split(b"\n")
        self._put(lines)
        return rest

    def _put(self, lines: list[bytes]) -> None:
        now = int(time.time() * 1000)
        texts = (line[:_LONGEST_EVENT].decode("utf-8", "replace").rstrip() for line in lines)
        events = [{"timestamp": now, "message": text} for text in texts if text]
        if events:
            self._backend.ensure_log_group(self._group)
            self._backend.ensure_log_stream(self._group, self._stream)
            self._backend.put_log_events(self._group, self._stream, events)
