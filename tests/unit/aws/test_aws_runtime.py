"""Requests to an endpoint and its log: answers, streams, counters, errors, log lines."""

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.aws import runtime
from peagle.aws.runtime import Tail
from peagle.errors import EngineError
from peagle.protocol import request_body
from tests.support import raises_code
from tests.unit.answers import INVALID
from tests.unit.aws.cloud import START
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World

BODY = request_body("Hello", chat=True, max_tokens=5, stream=True)


@pytest.fixture
def serving(world: World) -> World:
    world.deploy(a_plan())
    return world


def _answer_with(world: World, monkeypatch: pytest.MonkeyPatch, *parts: bytes) -> None:
    """Let the endpoint stream exactly these parts."""
    events = [{"PayloadPart": {"Bytes": part}} for part in parts]
    monkeypatch.setattr(
        world.cloud, "_invoke_endpoint_with_response_stream", lambda **_: {"Body": events}
    )


def test_a_streamed_answer_arrives_in_pieces_even_if_parts_split_events(serving: World) -> None:
    pieces = list(runtime.stream(serving.aws, NAME, BODY))
    assert [piece.text for piece in pieces] == ["Hello", " world", ""]
    assert pieces[-1].output_tokens == 2


def test_pieces_arrive_before_stream_ends(serving: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> Any:
        yield {"PayloadPart": {"Bytes": b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'}}
        raise AssertionError("read on before the first piece was taken")

    monkeypatch.setattr(
        serving.cloud, "_invoke_endpoint_with_response_stream", lambda **_: {"Body": slow()}
    )
    assert next(runtime.stream(serving.aws, NAME, BODY)).text == "a"


def test_an_error_in_the_middle_of_a_stream_is_an_error(
    serving: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = {"error": {"message": "EngineCore died", "code": 500}}
    first = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    broken = f"data: {json.dumps(error)}\n\ndata: [DONE]\n\n".encode()
    _answer_with(serving, monkeypatch, first, broken)
    received: list[str] = []
    with raises_code("engine-failed", EngineError) as raised:
        received.extend(piece.text for piece in runtime.stream(serving.aws, NAME, BODY))
    assert "EngineCore died" in raised.value.message
    assert received == ["a"]
    assert raised.value.command == ("peagle", "logs", NAME)


def test_a_stream_that_ends_too_early_is_an_error(
    serving: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _answer_with(serving, monkeypatch, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')
    with raises_code("incomplete-response", EngineError) as raised:
        list(runtime.stream(serving.aws, NAME, BODY))
    assert raised.value.command == ("peagle", "logs", NAME)


@pytest.mark.parametrize("name", INVALID)
def test_an_answer_that_is_not_vllms_is_an_error_with_a_fix(
    serving: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    answer = INVALID[name]
    monkeypatch.setattr(serving.cloud, "_invoke_endpoint", lambda **_: {"Body": io.BytesIO(answer)})
    with raises_code("invalid-response", EngineError) as whole:
        runtime.ask(serving.aws, NAME, BODY)
    _answer_with(
        serving, monkeypatch, b"data: ", answer.replace(b"\n", b""), b"\n\ndata: [DONE]\n\n"
    )
    with raises_code("invalid-response", EngineError) as streamed:
        list(runtime.stream(serving.aws, NAME, BODY))
    for raised in (whole, streamed):
        assert raised.value.command == ("peagle", "logs", NAME)
        assert "\n" not in str(raised.value)
        assert len(raised.value.message) < 600
    assert runtime.counters(serving.aws, NAME) is None


def test_every_line_is_read_once_even_with_equal_timestamps(world: World) -> None:
    tail = Tail(world.aws, NAME, START)
    assert tail.drain() == []
    world.cloud.write_log("one")
    assert [event.message for event in tail.drain()] == ["one"]
    world.cloud.write_log("two, in the same millisecond")
    assert [event.message for event in tail.drain()] == ["two, in the same millisecond"]
    world.cloud.now += 1
    world.cloud.write_log("three")
    world.cloud.write_log("")
    assert [event.message for event in tail.drain()] == ["three", ""]
    assert tail.drain() == []


def test_a_late_line_is_read(world: World) -> None:
    tail = Tail(world.aws, NAME, START)
    world.cloud.now += 20
    world.cloud.write_log("quick stream")
    tail.drain()
    world.cloud.now -= 15
    world.cloud.write_log("slow stream")
    assert [event.message for event in tail.drain()] == ["slow stream"]
    assert tail.drain() == []


def test_requests_at_the_same_time_all_name_the_component(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is sent while the first one looks whether the endpoint has one."""
    sent: list[dict[str, Any]] = []

    class Asked:
        region = "us-east-1"

        def call(self, service: str, operation: str, **parameters: Any) -> dict[str, Any]:
            sent.append(parameters)
            return {"Body": io.BytesIO(b"{}")}

    def describe(aws: Any, name: str) -> SimpleNamespace:
        if not looks:
            looks.append(name)
            runtime.invoke(aws, name, b"{}")
        return SimpleNamespace(hosts_components=True)

    looks: list[str] = []
    monkeypatch.setattr("peagle.aws.sagemaker.describe", describe)
    runtime.invoke(Asked(), NAME, b"{}")  # type: ignore[arg-type]
    assert [parameters.get("InferenceComponentName") for parameters in sent] == [NAME, NAME]
