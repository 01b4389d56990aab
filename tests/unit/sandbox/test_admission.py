"""A request never goes to an engine that drains, and a response has an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from peagle.sandbox import invocations
from peagle.sandbox.instance import Draining, EngineInstance
from peagle.sandbox.launch_spec import LaunchSpec
from peagle.sandbox.protocol import ErrorResponse, Invocation
from peagle.sandbox.relay import ResponseHead
from peagle.sandbox.traffic import MetricSource, RequestMetrics

CALL = Invocation("e", "invocations", "us-east-1", {}, b"{}", None)


def instance() -> EngineInstance:
    return EngineInstance(LaunchSpec("us-east-1", "e", "v", {}, (), 1))


def admits(engine: EngineInstance) -> bool:
    try:
        with engine.invocation():
            return True
    except Draining:
        return False


def test_an_engine_that_drains_answers_what_it_has_and_admits_nothing_more() -> None:
    engine = instance()
    draining = threading.Thread(target=engine.drain)
    with engine.invocation():
        draining.start()
        while admits(engine):
            pass  # until the thread waits
        assert draining.is_alive()
    draining.join(5)
    assert not draining.is_alive()
    assert engine.in_progress == 0


def test_a_request_chosen_for_an_engine_that_drains_goes_to_its_successor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = instance(), instance()
    old.drain()
    chosen: Iterator[EngineInstance] = iter([old, old, new])
    monkeypatch.setattr(invocations, "_serving_instance", lambda *_: next(chosen))
    with ExitStack() as stack:
        assert invocations._admitted(CALL, stack) is new
        assert new.in_progress == 1
    assert new.in_progress == 0


class Endless:
    """A response of an engine that never ends."""

    head = ResponseHead(200, {})

    def chunks(self) -> Iterator[bytes]:
        while True:
            yield bytes(1 << 20)


def test_a_response_beyond_the_limit_is_a_model_error() -> None:
    endless: Any = Endless()
    metrics = RequestMetrics(MetricSource("us-east-1", "e", "AllTraffic"), 0)
    relayed = invocations._Relayed("us-east-1", "e", instance(), endless, metrics, ExitStack())
    with pytest.raises(ErrorResponse) as raised:
        relayed.whole()
    (body,) = raised.value.response.body
    assert b"more than 33554432 bytes" in body
