"""Frames for botocore's parser of event streams."""

from __future__ import annotations

import json

from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from peagle.sandbox.protocol import payload_part, stream_error


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_payload_parts_round_trip(parts: list[bytes]) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(payload_part(part) for part in parts))
    events = list(buffer)
    assert [event.payload for event in events] == parts
    assert {event.headers[":event-type"] for event in events} == {"PayloadPart"}


@given(st.text(max_size=50))
def test_an_error_round_trips(message: str) -> None:
    buffer = EventStreamBuffer()
    buffer.add_data(stream_error(message, "StreamBroken"))
    (event,) = buffer
    assert event.headers[":message-type"] == "exception"
    assert event.headers[":exception-type"] == "ModelStreamError"
    assert json.loads(event.payload) == {"Message": message, "ErrorCode": "StreamBroken"}
