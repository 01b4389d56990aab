"""Requests to an endpoint: complete and streamed answers, counters; and its log in CloudWatch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from peagle.aws import sagemaker
from peagle.aws.client import Aws, translated
from peagle.aws.errors import AccessDenied, Missing
from peagle.engine_log import log_text
from peagle.errors import CloudError, EngineError, Fix, UserError, fixed_by
from peagle.protocol import (
    Counters,
    Piece,
    log_group,
    parse_counters,
    parse_piece,
    parse_response,
    pieces_in,
)
from peagle_serve.contract import COUNTERS_ATTRIBUTE

LATE_MILLISECONDS = 30_000
"""Maximum delay of events that are still shown."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
"""Terminal control sequences, which a log must not send to the reader's terminal."""

_JSON = "application/json"
_RUNTIME = "sagemaker-runtime"


def invoke(aws: Aws, endpoint: str, data: bytes, **parameters: str) -> bytes:
    """One InvokeEndpoint call; the complete response. AWS allows 60 seconds."""
    with _log_named(endpoint):
        request = {**_target(aws, endpoint), "Body": data, "ContentType": _JSON, **parameters}
        response = aws.call(_RUNTIME, "invoke_endpoint", **request)
        with translated(_RUNTIME, aws.region):
            content: bytes = response["Body"].read()
    return content


def ask(aws: Aws, endpoint: str, body: dict[str, Any], **parameters: str) -> dict[str, Any]:
    """The complete answer to ``body``. Answers that take longer than 60 seconds must stream."""
    with _log_named(endpoint):
        document = parse_response(invoke(aws, endpoint, encoded(body), Accept=_JSON, **parameters))
        parse_piece(document)
        return document


def stream(aws: Aws, endpoint: str, body: dict[str, Any]) -> Iterator[Piece]:
    """The answer piece by piece, as it arrives. ``body`` must request a stream."""
    with _log_named(endpoint):
        request = {**_target(aws, endpoint), "Body": encoded(body), "ContentType": _JSON}
        events = aws.call(_RUNTIME, "invoke_endpoint_with_response_stream", **request)["Body"]
        with translated(_RUNTIME, aws.region):
            yield from pieces_in(event.get("PayloadPart", {}).get("Bytes", b"") for event in events)


_components: WeakKeyDictionary[Aws, dict[str, bool]] = WeakKeyDictionary()
"""Whether an endpoint's instances serve inference components, by its name."""


def _target(aws: Aws, endpoint: str) -> dict[str, str]:
    """The parameters of a request that name the endpoint, and the component of its name if it has
    one. Without the permission to look, it has none."""
    by_name = _components.setdefault(aws, {})
    if endpoint not in by_name:
        live = None
        with suppress(CloudError):
            live = sagemaker.describe(aws, endpoint)
        # Known once it is looked up: a proof sends several requests at a time.
        by_name[endpoint] = live is not None and live.hosts_components
    component = {"InferenceComponentName": endpoint} if by_name[endpoint] else {}
    return {"EndpointName": endpoint, **component}


def _log_named(endpoint: str) -> AbstractContextManager[None]:
    """Give an engine's error that has no fix the command that prints the endpoint's log."""
    return fixed_by(lambda: Fix("read the log", ("peagle", "logs", endpoint)))


def counters(aws: Aws, endpoint: str, **parameters: str) -> Counters | None:
    """The engine's speculation counters; ``None`` from an image without ``peagle_serve``, such as
    AWS's, which rejects the empty request or answers something else."""
    try:
        parameters = {"CustomAttributes": COUNTERS_ATTRIBUTE, **parameters}
        response = invoke(aws, endpoint, b"{}", **parameters)
    except UserError:
        return None
    try:
        return parse_counters(parse_response(response))
    except EngineError:
        return None


def encoded(body: dict[str, Any]) -> bytes:
    """The body as sent."""
    return json.dumps(body, ensure_ascii=False).encode()


@dataclass(frozen=True)
class LogEvent:
    """One line: ``message`` as people read it, ``raw`` as it was written, ``time`` in epoch
    seconds, and ``stream``, which is ``<variant>/<instance>``."""

    time: float
    stream: str
    message: str
    raw: str


class Tail:
    """Reads an endpoint's log, or those streams of a ``group`` that begin with a ``prefix``, from
    ``since`` (epoch seconds) on, every event once. Streams reach CloudWatch with different delays,
    so each read goes back a little. A stream with an event in the time ``earlier`` is an earlier
    engine's, and left out."""

    def __init__(
        self, aws: Aws, endpoint: str, since: float, copies: bool = False, group: str = "",
        prefix: str = "", earlier: tuple[float, float] = (0.0, 0.0),
    ) -> None:  # fmt: skip
        self.since = since
        self._aws = aws
        self._prefix = prefix
        self._group = group or log_group(endpoint, copies)
        self._newest = int(since * 1000)
        self._seen: dict[str, int] = {}
        self._earlier = earlier
        self._is_earlier: dict[str, bool] = {}

    def new(self) -> Iterator[LogEvent]:
        """New events since the last call; none while there is no log."""
        start = max(int(self.since * 1000), self._newest - LATE_MILLISECONDS)
        self._seen = {event: time for event, time in self._seen.items() if time >= start}
        listed = self._aws.items(
            "logs", "filter_log_events", "events", logGroupName=self._group, startTime=start,
            **({"logStreamNamePrefix": self._prefix} if self._prefix else {}),
        )  # fmt: skip
        try:
            for entry in listed:
                event, stream, moment = entry["eventId"], entry["logStreamName"], entry["timestamp"]
                is_meant = stream.startswith(self._prefix)  # also with moto
                if is_meant and event not in self._seen and not self._is_of_earlier(stream):
                    self._seen[event] = moment
                    self._newest = max(self._newest, moment)
                    raw = clean(entry["message"])
                    yield LogEvent(moment / 1000, stream, log_text(raw), raw)
        except Missing:
            return

    def _is_of_earlier(self, stream: str) -> bool:
        start, end = (int(moment * 1000) for moment in self._earlier)
        if stream not in self._is_earlier:
            listed = self._aws.items(
                "logs", "filter_log_events", "events", logGroupName=self._group,
                logStreamNames=[stream], startTime=start, endTime=end - 1,
            )  # fmt: skip
            self._is_earlier[stream] = start < end and next(iter(listed), None) is not None
        return self._is_earlier[stream]

    def drain(self) -> list[LogEvent]:
        """``new`` as a list; empty without the permission to read the log, which is optional."""
        try:
            return list(self.new())
        except AccessDenied:
            return []


def clean(message: str) -> str:
    """The text without line end and control sequences."""
    return _CONTROL.sub("", message.rstrip("\r\n")).replace("\n", " ")
