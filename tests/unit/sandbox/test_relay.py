"""Reading an HTTP response as its bytes arrive, in any division."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.sandbox.relay import BrokenResponse, HttpExchange, ResponseHead

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


class Engine:
    """The other end of the connection: takes the request, sends ``pieces``, then closes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.request = b""
        self.left = [piece for piece in pieces if piece]

    def take(self, request: bytes) -> None:
        self.request += request

    def send(self) -> bytes:
        return self.left.pop(0) if self.left else b""


def begin(pieces: list[bytes]) -> tuple[ResponseHead, Iterator[bytes], Engine]:
    engine = Engine(pieces)
    exchange = HttpExchange(engine.take, engine.send)
    return (
        exchange.post("127.0.0.1:1", "/path", {"Accept": "ü"}, b"body"),
        exchange.chunks(),
        engine,
    )


def read(pieces: list[bytes]) -> list[bytes]:
    """The data of the body, chunk by chunk."""
    return list(begin(pieces)[1])


def cut(data: bytes, positions: list[int]) -> list[bytes]:
    """``data`` divided at ``positions``."""
    edges = [0, *sorted(position % (len(data) + 1) for position in positions), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def chunked(chunks: list[bytes]) -> bytes:
    body = b"".join(b"%x;note=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return CHUNKED + body + b"0\r\n\r\n"


def test_the_request_is_sent_with_its_headers_and_body() -> None:
    head, _, engine = begin([chunked([])])
    assert engine.request == (
        b"POST /path HTTP/1.1\r\nHost: 127.0.0.1:1\r\nContent-Length: 4\r\nConnection: close\r\n"
        b"Accept: \xfc\r\n\r\nbody"
    )
    assert (head.status, head.headers["content-type"]) == (200, "a/b")


@pytest.mark.thorough
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400)))
def test_a_chunked_body_is_the_same_for_every_division(chunks: list[bytes], at: list[int]) -> None:
    assert b"".join(read(cut(chunked(chunks), at))) == b"".join(chunks)


@given(st.binary(max_size=60), st.lists(st.integers(0, 200)))
def test_a_body_with_a_length_is_the_same_for_every_division(body: bytes, at: list[int]) -> None:
    response = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    assert b"".join(read(cut(response, at))) == body


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert read([HEAD + b"\r\n", b"one", b"two"]) == [b"one", b"two"]


def test_an_interim_response_is_skipped() -> None:
    assert read([b"HTTP/1.1 100 Continue\r\n\r\n", chunked([b"one"])]) == [b"one"]


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_chunks_that_arrive_together_stay_separate(chunks: list[bytes]) -> None:
    assert read([chunked(chunks)]) == chunks


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400)))
def test_all_data_is_passed_on_before_more_is_awaited(chunks: list[bytes], at: list[int]) -> None:
    """A piece that waited for the bytes after it would delay every token of a stream."""
    response, pieces = chunked(chunks), cut(chunked(chunks), at)
    sent, passed_on = 0, b""

    def send() -> bytes:
        nonlocal sent
        assert passed_on == payload(response[:sent], chunks)
        sent += len(pieces[0])
        return pieces.pop(0)

    pieces = [piece for piece in pieces if piece]
    exchange = HttpExchange(lambda request: None, send)
    exchange.post("127.0.0.1:1", "/path", {}, b"")
    for data in exchange.chunks():
        passed_on += data
    assert passed_on == b"".join(chunks)


def payload(received: bytes, chunks: list[bytes]) -> bytes:
    """The data in the first bytes of a response with these chunks."""
    data, position = b"", len(CHUNKED)
    for chunk in chunks:
        start = position + len(b"%x;note=1\r\n" % len(chunk))
        data += received[start : start + len(chunk)]
        position = start + len(chunk) + len(b"\r\n")
    return data


def test_data_of_an_incomplete_chunk_is_passed_on() -> None:
    _, data, engine = begin([CHUNKED + b"a\r\n12345"])
    assert (next(data), engine.left) == (b"12345", [])
    with pytest.raises(BrokenResponse):
        next(data)


@given(st.integers(0, len(chunked([b"one", b"two"])) - len(CHUNKED) - 3))
def test_a_chunked_body_that_ends_early_is_broken(kept: int) -> None:
    with pytest.raises(BrokenResponse):
        read([chunked([b"one", b"two"])[: len(CHUNKED) + kept]])


def test_a_body_shorter_than_its_length_is_broken() -> None:
    with pytest.raises(BrokenResponse):
        read([HEAD + b"Content-Length: 9\r\n\r\n12345"])


@pytest.mark.parametrize("size", [b"xyz", b"", b"-", b"1 2"])
def test_an_invalid_chunk_size_is_broken(size: bytes) -> None:
    with pytest.raises(BrokenResponse):
        read([CHUNKED + size + b"\r\n"])


@pytest.mark.parametrize("response", [b"SSH-2.0-OpenSSH\r\n\r\n", b"x" * 70_000])
def test_a_response_that_is_not_http_is_broken(response: bytes) -> None:
    with pytest.raises(BrokenResponse):
        begin([response])


@pytest.mark.parametrize("response", [b"", b"HTTP/1.1 200 OK\r\n"])
def test_a_connection_that_closes_before_the_head_is_complete_is_broken(response: bytes) -> None:
    with pytest.raises(BrokenResponse):
        begin([response])
