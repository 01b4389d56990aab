"""What the soak counts: a stream is complete, broken by something, or silent, and nothing else."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator

import pytest

from tests.soak.__main__ import is_bad
from tests.soak.memory import Memory
from tests.soak.streams import Answer, Broken, Client, Events, Refused, Silent, Tally

ENGINE = 7
RESET = Broken("connection reset")


def words(count: int, engine: int = ENGINE) -> Iterator[bytes]:
    """The first ``count`` words of an answer, without its end."""
    for number in range(count):
        choice = {"delta": {"content": f"{number} "}, "finish_reason": None}
        document = {"id": f"chatcmpl-{engine}", "choices": [choice]}
        yield f"data: {json.dumps(document)}\n\n".encode()


def client(events: Events, tally: Tally, answer: list[bytes | Exception], drains: bool) -> Client:
    def stream(route: str, body: bytes) -> Iterator[bytes]:
        for part in answer:
            if isinstance(part, Exception):
                raise part
            yield part

    stop = threading.Event()
    return Client(stream, ("route",), events, tally, stop, "1", True, drains)


def counted(
    answer: list[bytes | Exception], kind: str = "", killed: int = 0, drains: bool = False
) -> str:
    """What is counted for one answer while ``kind`` is done to the target."""
    events, tally = Events(), Tally()
    events.killed |= {killed} if killed else set()
    one = client(events, tally, answer, drains)
    chance = random.Random(3)
    if kind:
        with events.during(kind):  # type: ignore[arg-type]
            one._one(chance)
    else:
        one._one(chance)
    ((name, count),) = tally.counts.items()
    assert count == 1
    return name


@pytest.mark.parametrize(
    ("answer", "kind", "killed", "name"),
    [
        ([*words(2), RESET], "update", 0, "broken at update"),
        ([*words(2), RESET], "drain", 0, "broken at drain"),
        ([*words(2), RESET], "", 0, "broken alone"),
        ([*words(2), RESET], "update", ENGINE, "killed: broken with an error"),
        ([*words(2), RESET], "kill", 8, "broken alone"),
        ([RESET], "kill", 8, "killed: broken with an error"),
        ([Refused("503")], "kill", 8, "killed: refused"),
        ([Refused("503")], "update", 0, "broken at update"),
        ([Refused("503")], "drain", 0, "refused at drain"),
        ([b'data: {"error": "out of memory"}\n\n'], "", 0, "broken alone"),
        ([*words(2)], "kill", ENGINE, "silent (kill)"),
        ([*words(2), TimeoutError()], "kill", ENGINE, "silent (kill)"),
        ([*words(2), b"data: [DONE]\n\n"], "", 0, "silent (alone)"),
    ],
)
def test_what_becomes_of_a_stream(
    answer: list[bytes | Exception], kind: str, killed: int, name: str
) -> None:
    assert counted(answer, kind, killed, drains=name == "refused at drain") == name
    assert is_bad(name) == name.startswith(("broken", "silent"))


def test_a_word_that_is_missing_is_silence() -> None:
    answer = Answer(numbered=True)
    for part in [*words(3), next(words(1)).replace(b"null", b'"length"'), b"data: [DONE]\n\n"]:
        answer.add(part)
    with pytest.raises(Silent, match="4 words expected: 0 1 2 0"):
        answer.check(4)


def test_an_act_counts_until_it_is_over() -> None:
    events = Events()
    began = time.monotonic()
    with events.during("drain"):
        assert events.cause(began, None) == "drain"
    assert events.cause(began, None) == "drain"
    assert events.cause(time.monotonic(), None) == "alone"
    assert events.counts() == {"drain": 1}


def test_memory_grows_from_the_end_of_the_first_tenth() -> None:
    memory = Memory()
    memory.series["sandbox"] = [(float(at), 50 if at < 9 else 100 + at // 10) for at in range(100)]
    assert memory.growth(100) == {"sandbox": 109 / 100.5}
