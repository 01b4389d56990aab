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

from peagle.checkpoints.files import header_bytes, parse_header
from peagle.errors import CheckpointError
from peagle_serve.checkpoint import LARGEST_HEADER
from tests.support import raises_code
from tests.unit.checkpoints.files import BITS, ONE, Shapes, file_of, header_of, weights

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
    with raises_code("weights-damaged", CheckpointError) as refused:
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
    assert all(tensor.file == "f" for tensor in found.values())
    theirs = {name: (one["shape"], len(one["data"])) for name, one in deserialize(content)}
    assert theirs == {name: (list(tensor.shape), tensor.size) for name, tensor in found.items()}


@pytest.mark.thorough
@given(TENSORS, st.data())
@settings(deadline=None, derandomize=True, max_examples=150)
def test_a_damaged_byte_is_refused_exactly_when_the_library_refuses(
    shapes: Shapes, data: st.DataObject
) -> None:
    content = bytearray(weights(shapes))
    length = len(content) - header_of(shapes)[1]
    content[data.draw(st.integers(0, length - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_header(bytes(content), len(content), "f")
        accepted = True
    except CheckpointError as error:
        accepted = " twice" in error.message
    assert accepted or not library_reads(bytes(content))
    if library_reads(bytes(content)):
        assert accepted


@given(st.integers(0, len(ONE) - 1))
def test_every_shortened_file_is_refused(size: int) -> None:
    assert "is truncated" in refusal(ONE[:size])
    assert not library_reads(ONE[:size])


@pytest.mark.parametrize(
    ("header", "size", "text"),
    [
        ({"a": {**TENSOR, "data_offsets": [2, 6]}}, 6, "2 bytes before 'a' belong to no tensor"),
        ({"a": TENSOR, "b": {**TENSOR, "data_offsets": [2, 6]}}, 6, "'b' overlaps 'a'"),
        ({"a": TENSOR, "b": {**TENSOR, "data_offsets": [8, 12]}}, 12, "4 bytes before 'b'"),
        ({"a": {**TENSOR, "data_offsets": [4, 0]}}, 4, "ends at 0, before it begins at 4"),
        ({"a": TENSOR}, 5, "1 bytes at its end belong to no tensor"),
        ({"a": {**TENSOR, "shape": [5]}}, 4, "U8 [5], which takes 5 bytes, and the header gives"),
        ({"a": {**TENSOR, "dtype": "F4", "shape": [7]}}, 4, "takes 3.5 bytes"),
        ({"a": {**TENSOR, "shape": [2**60, 2**60]}}, 4, "takes far too many bytes"),
        ({"a": {**TENSOR, "dtype": "F128"}}, 4, "'a' has the unknown dtype 'F128'"),
        ({"a": {**TENSOR, "dtype": ["U8"]}}, 4, "has the unknown dtype ['U8']"),
        ({"a": {**TENSOR, "shape": [-4]}}, 4, "the shape of 'a' is [-4]"),
        ({"a": {**TENSOR, "shape": [4.0]}}, 4, "the shape of 'a' is [4.0]"),
        ({"a": {**TENSOR, "shape": [True, 4]}}, 4, "the shape of 'a' is [True, 4]"),
        ({"a": {**TENSOR, "shape": "4"}}, 4, "the shape of 'a' is '4'"),
        ({"a": {**TENSOR, "data_offsets": [-4, 0]}}, 4, "no valid data_offsets for 'a'"),
        ({"a": {**TENSOR, "data_offsets": [0, 4, 8]}}, 4, "no valid data_offsets for 'a'"),
        ({"a": {"dtype": "U8", "shape": [4]}}, 4, "no valid data_offsets for 'a'"),
        ({"a": 1}, 4, "does not describe 'a'"),
        ({"__metadata__": {"format": 1}}, 0, "__metadata__ of its header"),
        ({"\x1b[2J\n": 1}, 0, r"'\x1b[2J\n'"),
        ({"n" * 500: 1}, 0, "nnn..."),
        ([], 0, "its header is not a JSON object"),
        (b"", 0, "its header is not valid JSON"),
        (b"{", 0, "its header is not valid JSON"),
        (b'{"a": NaN}', 0, "its header has NaN"),
        (b"\xff\xfe{}", 0, "its header is not UTF-8"),
        (b'{"\\ud800": {"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', 4, "half of a surrogate"),
        (b"[" * 100_000, 0, "its header is nested more than 64 levels deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, 0, "more than 64 levels deep"),
        (
            b'{"a": {"shape": [' + b"9" * 5000 + b"]}}",
            0,
            "its header has a number of more than 100",
        ),
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


@pytest.mark.parametrize("header", [{}, {"__metadata__": None}, b"  {}  "])
def test_a_file_without_tensors_is_valid(header: object) -> None:
    content = file_of(header, 0)
    assert parse_header(content, len(content), "f") == {}
    assert library_reads(content)


def test_a_length_beyond_the_file_is_refused() -> None:
    assert "would have 9,223,372,036,854,775,808 bytes" in refusal(
        struct.pack("<Q", 2**63) + bytes(8)
    )


def test_a_header_of_100_mb_is_refused_after_its_first_bytes() -> None:
    head = struct.pack("<Q", 100_000_000) + b"{"
    message = refusal(head, size=200_000_000)
    assert "100 MB" in message
    assert "less than 1 MB" in message
    assert header_bytes(struct.pack("<Q", LARGEST_HEADER), 10**9, "f") == LARGEST_HEADER + 8


def test_a_git_lfs_pointer_is_recognized() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with raises_code("weights-damaged", CheckpointError) as refused:
        parse_header(pointer, len(pointer), "f")
    assert "git lfs pull" in refused.value.fix


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
