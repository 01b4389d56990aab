"""The header of a safetensors file, compared with the library that vLLM uses."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors import deserialize as deserialize_untyped

from peagle_serve.checkpoint import LARGEST_HEADER, DamagedFile, header_bytes, parse_header
from tests.unit.checkpoints.files import BITS, ONE, Shapes, file_of, weights

deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = deserialize_untyped

TENSOR = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
DTYPES = st.sampled_from(sorted(BITS))
# Eight elements of any dtype fill whole bytes.
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(lambda shape: (8, *shape))
TENSORS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(DTYPES, SHAPES),
    max_size=8,
)


def refusal(content: bytes, size: int | None = None) -> str:
    with pytest.raises(DamagedFile) as refused:
        parse_header(content, len(content) if size is None else size, "model.safetensors")
    assert refused.value.message.startswith("model.safetensors")
    assert refused.value.fix
    assert len(refused.value.message) < 400
    assert refused.value.message.isprintable()
    return refused.value.message


def library_reads(content: bytes) -> bool:
    try:
        deserialize(content)
    except SafetensorError:
        return False
    return True


@pytest.mark.thorough
@given(TENSORS)
@settings(deadline=None)
def test_a_header_is_read_as_the_library_reads_it(shapes: Shapes) -> None:
    content = weights(shapes)
    found = parse_header(content, len(content), "f")
    assert {name: (tensor.dtype, tensor.shape) for name, tensor in found.items()} == dict(shapes)
    theirs = {name: (one["shape"], len(one["data"])) for name, one in deserialize(content)}
    assert theirs == {name: (list(tensor.shape), tensor.size) for name, tensor in found.items()}


@given(st.integers(0, len(ONE) - 1))
def test_every_shortened_file_is_refused(size: int) -> None:
    assert "is truncated" in refusal(ONE[:size])
    assert not library_reads(ONE[:size])


@pytest.mark.parametrize(
    ("header", "size", "text"),
    [
        ({"a": {**TENSOR, "data_offsets": [4, 0]}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "dtype": ["U8"]}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "shape": [-4]}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "shape": [4.0]}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "shape": [True, 4]}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "shape": "4"}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "data_offsets": [-4, 0]}}, 4, "does not describe 'a'"),
        ({"a": {**TENSOR, "data_offsets": [0, 4, 8]}}, 4, "does not describe 'a'"),
        ({"a": {"dtype": "U8", "shape": [4]}}, 4, "does not describe 'a'"),
        ({"a": 1}, 4, "does not describe 'a'"),
        ({"\x1b[2J\n": 1}, 0, r"'\x1b[2J\n'"),
        ({"n" * 500: 1}, 0, "nnn"),
        ([], 0, "its header is not a JSON object"),
        (b"", 0, "its header is not valid JSON"),
        (b"{", 0, "its header is not valid JSON"),
        (b'{"a": NaN}', 0, "its header has NaN"),
        (b"\xff\xfe{}", 0, "its header is not UTF-8"),
        (b'{"\\ud800": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', 4, "half of a surrogate"),
        (b"[" * 100_000, 0, "cannot be read"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 0, "cannot be read"),
        (b'{"a": {"shape": [' + b"9" * 5000 + b"]}}", 0, "Exceeds the limit"),
    ],
)
def test_damage_is_reported(header: object, size: int, text: str) -> None:
    content = file_of(header, size)
    assert text in refusal(content)
    assert not library_reads(content)


def test_a_duplicate_name_is_refused_though_the_library_reads_the_last() -> None:
    entry = json.dumps(TENSOR)
    content = file_of(f'{{"a": {entry}, "a": {entry}}}'.encode(), 4)
    assert "'a' twice" in refusal(content)
    assert library_reads(content)


def test_a_header_of_100_mb_is_refused_after_its_first_bytes() -> None:
    head = struct.pack("<Q", 100_000_000) + b"{"
    message = refusal(head, size=200_000_000)
    assert "100 MB" in message
    assert header_bytes(struct.pack("<Q", LARGEST_HEADER), 10**9, "f") == LARGEST_HEADER + 8


@pytest.mark.thorough
@pytest.mark.parametrize(
    "header",
    [
        b'{"a": {"dtype":"U8","shape":[' + b"99999999999999999999," * 300_000 + b"9]}}",
        b"{" + b",".join(b'"n%d":0' % n for n in range(400_000)) + b',"n399999":0}',
    ],
    ids=["shape", "names"],
)
def test_a_hostile_header_is_refused_quickly(header: bytes) -> None:
    begin = time.process_time()
    refusal(file_of(header, 0))
    assert time.process_time() - begin < 5
