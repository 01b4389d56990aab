"""Reading an HTTP answer as its bytes come in, however they are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.sandbox.runtime.relay import BodyReader, BrokenAnswer, Head, split_head

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """``data`` in pieces, cut at ``places``."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def read(pieces: list[bytes]) -> tuple[Head, list[bytes], BodyReader]:
    """The head, the body's data as it was given out, and the reader."""
    received = b""
    pieces = list(pieces)
    while (parts := split_head(received)) is None:
        received += pieces.pop(0)
    head, rest = parts
    reader = BodyReader(head)
    return head, [data for piece in (rest, *pieces) for data in reader.feed(piece)], reader


def chunked(chunks: list[bytes]) -> bytes:
    body = b"".join(b"%x;note=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return CHUNKED + body + b"0\r\n\r\n"


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.lists(st.integers(0, 400)))
def test_a_chunked_body_is_the_same_however_it_is_cut(chunks: list[bytes], at: list[int]) -> None:
    head, data, reader = read(cut(chunked(chunks), at))
    assert head.status == 200
    assert b"".join(data) == b"".join(chunks)
    assert reader.complete
    reader.end()


@given(st.binary(max_size=60), st.lists(st.integers(0, 200)))
def test_a_body_with_a_length_is_the_same_however_it_is_cut(body: bytes, at: list[int]) -> None:
    answer = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    _, data, reader = read(cut(answer, at))
    assert (b"".join(data), reader.complete) == (body, True)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    _, data, reader = read([HEAD + b"\r\n", b"one", b"two"])
    assert (b"".join(data), reader.complete) == (b"onetwo", False)
    reader.end()
    assert reader.complete


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5))
def test_chunks_that_arrive_together_stay_apart(chunks: list[bytes]) -> None:
    _, data, _ = read([chunked(chunks)])
    assert data == chunks


def test_data_is_given_out_before_its_chunk_is_complete() -> None:
    _, data, reader = read([CHUNKED + b"a\r\n12345"])
    assert (data, reader.complete) == ([b"12345"], False)


@given(st.integers(0, len(chunked([b"one", b"two"])) - len(CHUNKED) - 3))
def test_a_chunked_body_that_ends_early_is_broken(kept: int) -> None:
    _, _, reader = read([chunked([b"one", b"two"])[: len(CHUNKED) + kept]])
    with pytest.raises(BrokenAnswer):
        reader.end()


@pytest.mark.parametrize("size", [b"xyz", b"", b"-", b"1 2"])
def test_what_is_no_chunk_size_is_broken(size: bytes) -> None:
    with pytest.raises(BrokenAnswer):
        read([CHUNKED + size + b"\r\n"])


def test_what_is_not_http_is_broken() -> None:
    with pytest.raises(BrokenAnswer, match="not HTTP"):
        split_head(b"SSH-2.0-OpenSSH\r\n\r\n")


def test_a_head_without_an_end_is_broken() -> None:
    assert split_head(b"HTTP/1.1 200 OK\r\n") is None
    with pytest.raises(BrokenAnswer, match="does not end"):
        split_head(b"x" * 70_000)
