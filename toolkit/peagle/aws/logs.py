"""An endpoint's log in CloudWatch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.protocol import log_text

LATE_MILLISECONDS = 30_000
"""Maximum delay of events that are still shown."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""Terminal control sequences, which a log must not send to the reader's terminal."""


@dataclass(frozen=True)
class LogEvent:
    """One line: ``message`` as people read it, ``raw`` as it was written, without control
    characters.

    ``time`` is epoch seconds; ``stream`` is ``<variant>/<instance>``.
    """

    time: float
    stream: str
    message: str
    raw: str


def group_of(endpoint: str) -> str:
    """The log group of an endpoint's output."""
    return f"/aws/sagemaker/Endpoints/{endpoint}"


class Tail:
    """Reads an endpoint's log from ``since`` (epoch seconds) on, every event once.

    Log streams reach CloudWatch with different delays, so each read goes back a little.
    """

    def __init__(self, aws: Aws, endpoint: str, since: float) -> None:
        self.since = since
        self.last_line = ""
        self._aws = aws
        self._group = group_of(endpoint)
        self._newest = int(since * 1000)
        self._seen: dict[str, int] = {}

    def new(self) -> Iterator[LogEvent]:
        """New events since the last call; none while there is no log."""
        start = max(int(self.since * 1000), self._newest - LATE_MILLISECONDS)
        self._seen = {event: time for event, time in self._seen.items() if time >= start}
        listed = self._aws.items(
            "logs", "filter_log_events", "events", logGroupName=self._group, startTime=start
        )
        try:
            for entry in listed:
                if entry["eventId"] not in self._seen:
                    yield self._note(entry)
        except Missing:
            return

    def _note(self, entry: dict[str, Any]) -> LogEvent:
        self._seen[entry["eventId"]] = entry["timestamp"]
        self._newest = max(self._newest, entry["timestamp"])
        raw = clean(entry["message"])
        message = log_text(raw)
        self.last_line = message.strip() or self.last_line
        return LogEvent(entry["timestamp"] / 1000, entry["logStreamName"], message, raw)

    def drain(self) -> list[LogEvent]:
        """``new`` as a list; empty without the permission to read the log, which is optional."""
        try:
            return list(self.new())
        except AccessDenied:
            self.last_line = "(no permission to read the log: logs:FilterLogEvents)"
            return []


def clean(message: str) -> str:
    """The text without line end and control sequences."""
    return _CONTROL.sub("", message.rstrip("\r\n")).replace("\n", " ")
