"""Streams are read the same however the network cuts them; acceptance is vLLM's own definition."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.deploy.invoke import measure_answer
from peagle.errors import EngineFailed
from peagle.protocol import (
    Counters,
    EventSplitter,
    Piece,
    acceptance_length,
    parse_counters,
    parse_piece,
    pieces,
    request_body,
)

NO_NEWLINES = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1)


def _stream(texts: list[str]) -> bytes:
    chunks = [json.dumps({"choices": [{"delta": {"content": text}}]}) for text in texts]
    events = [*chunks, json.dumps({"choices": [], "usage": {"completion_tokens": 7}}), "[DONE]"]
    return "".join(f"data: {event}\n\n" for event in events).encode()


@given(texts=st.lists(NO_NEWLINES, max_size=8), cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_text_is_the_same_for_all_chunk_boundaries(texts: list[str], cuts: list[int]) -> None:
    stream = _stream(texts)
    edges = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    splitter = EventSplitter()
    events = [event for begin, end in pairwise(edges) for event in splitter.feed(stream[begin:end])]
    read = list(pieces(iter(events)))
    assert "".join(piece.text for piece in read) == "".join(texts)
    assert read[-1].output_tokens == 7


def test_events_may_end_in_carriage_returns_and_carry_comments() -> None:
    splitter = EventSplitter()
    assert list(splitter.feed(b": keep-alive\r\n\r\ndata: one\r\n\r")) == []
    assert list(splitter.feed(b"\ndata: two\n\n")) == ["one", "two"]


def test_completions_and_chats_are_read_in_the_same_way() -> None:
    completion = {"choices": [{"text": "hi"}], "usage": {"completion_tokens": 2}}
    chat = {"choices": [{"message": {"content": "hi"}}], "usage": {"completion_tokens": 2}}
    assert parse_piece(completion) == parse_piece(chat)


def test_a_chat_request_has_messages_and_a_completion_a_prompt() -> None:
    assert "messages" in request_body("hi", chat=True, max_tokens=5)
    assert request_body("hi", chat=False, max_tokens=5)["prompt"] == "hi"
    assert request_body("hi", chat=True, max_tokens=5, stream=True)["stream"] is True


def test_acceptance_length_counts_the_token_that_the_target_adds() -> None:
    counters = parse_counters({"drafts": 10, "draft_tokens": 50, "accepted_tokens": 16})
    assert acceptance_length(counters) == pytest.approx(2.6)
    assert acceptance_length(Counters(0, 0, 0)) is None


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_counters_since_an_earlier_reading(earlier: int, more: int) -> None:
    before = Counters(earlier, earlier * 5, earlier * 2, (earlier, earlier))
    after = Counters(
        earlier + more, (earlier + more) * 5, earlier * 2 + more, (earlier + more, earlier)
    )
    assert after.since(before) == Counters(more, more * 5, more, (more, 0))
    assert after.since(Counters(0, 0, 0)) == after


class Thinking:
    """A server whose model thinks before it answers, and whose engine tells the two apart."""

    def stream(self, body: dict[str, Any]) -> Iterator[Piece]:
        for delta in ({"reasoning": "It is "}, {"reasoning": "a"}, {"content": "He"},
                      {"content": "llo"}):  # fmt: skip
            yield parse_piece({"choices": [{"delta": delta}]})

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"choices": [{"message": {"reasoning": "It is a", "content": "Hello"}}]}

    def counters(self) -> None:
        return None


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_is_shown_before_the_answer(stream: bool) -> None:
    shown: list[str] = []
    server = Thinking()
    body = {"messages": [], "stream": stream}
    result = measure_answer(server.ask, server.stream, server.counters, body, shown.append)
    assert "".join(shown) == result.text == "It is a\n\nHello"


def test_an_answer_is_kept_when_the_server_ends_after_it() -> None:
    readings = iter([Counters(drafts=1)])

    def counters() -> Counters:
        if reading := next(readings, None):
            return reading
        raise EngineFailed("the container is shutting down")

    server = Thinking()
    result = measure_answer(server.ask, server.stream, counters, {"stream": True}, str)
    assert (result.text, result.acceptance_length) == ("It is a\n\nHello", None)


def test_an_answer_of_reasoning_only_is_no_empty_answer() -> None:
    piece = parse_piece({"choices": [{"message": {"content": None, "reasoning": "It is"}}]})
    assert (piece.text, piece.written) == ("", "It is")
