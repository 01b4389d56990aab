"""The reader of JSON from outside: what json reads, and an error for everything else."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peagle_serve.json_reader import InvalidJson, Limits, read

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.thorough
@given(VALUE, st.sampled_from([None, 0, 3, "\t"]), st.booleans(), st.booleans())
@example('\\"[{,', None, False, True)
@example({"\\": ['"', "\\\\"], '"': {}}, None, True, False)
def test_a_valid_document_reads_as_with_json(
    value: Any, indent: int | str | None, escaped: bool, encoded: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)

    found = read(text.encode() if encoded else text, "it", limits=Limits(depth=25, values=200))

    assert found == value == json.loads(text)


PIECES = ['"', "\\", "[", "]", "{", "}", ":", ",", "1", "-", "e9", "NaN", " ", "\n", "\\ud800", "a",
          '"a":', "null", "\x00", "\ud800", "\ufeff", "9" * 120]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join) | st.binary(max_size=40))
def test_any_text_is_read_or_refused(data: str | bytes) -> None:
    try:
        found = read(data, "it", limits=Limits(depth=3))
    except InvalidJson:
        return
    assert json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
    assert found == json.loads(data)


@pytest.mark.thorough
@given(VALUE, st.integers(0, 6))
def test_depth_is_that_of_the_document(value: Any, limit: int) -> None:
    def depth(part: Any) -> int:
        if not isinstance(part, list | dict):
            return 0
        inner = part.values() if isinstance(part, dict) else part
        return 1 + max(map(depth, inner), default=0)

    if depth(value) <= limit:
        assert read(json.dumps(value), "it", limits=Limits(depth=limit)) == value
    else:
        with pytest.raises(InvalidJson, match=f"more than {limit} levels"):
            read(json.dumps(value), "it", limits=Limits(depth=limit))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not valid JSON: Expecting value (line 1, column 1)"),
        ('{"a":\n 1,}', "(line 2, column 4)"),
        ('{"a": {"b": 1, "b": 2}}', "it has 'b' twice in one object"),
        ("[1,\n NaN]", "it has NaN, which is not JSON (line 2, column 2)"),
        ("-Infinity", "it has -Infinity, which is not JSON"),
        ("[1e400]", "it has the number 1e400, which is too large (line 1, column 2)"),
        ("9" * 101, "it has a number of more than 100 characters (line 1, column 1)"),
        ("0." + "9" * 101, "it has a number of more than 100 characters"),
        ("9" * 5000, "it has a number of more than 100 characters"),
        ("[" * 100_000, "it is nested more than 64 levels deep"),
        ('{"a":' * 100_000, "it is nested more than 64 levels deep"),
        ("[" + "0," * 500_000 + "0]", "it has more than 500,000 values"),
        ("[" + '"",' * 2_000_000, "it has more than 500,000 values"),
        (" " * (8 << 20) + "1", "it is longer than 8,388,608 bytes"),
        ("\u00e4" * (5 << 20), "it is longer than 8,388,608 bytes"),
        ('["\\ud800"]', "it has half of a surrogate pair"),
        ('{"\\uDFFF": 1}', "it has half of a surrogate pair"),
        ('"\ud800"', "it is not UTF-8 (invalid character at offset 1)"),
        (b'"\xff"', "it is not UTF-8 (invalid byte at offset 1)"),
        (b"\xff\xfe1\x00", "it is not UTF-8 (invalid byte at offset 0)"),
        (b"\xef\xbb\xbf1", "it is not valid JSON: Unexpected UTF-8 BOM"),
        ("\x00", "it is not valid JSON"),
    ],
    ids=range(22),
)
def test_what_is_refused_and_where(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        read(text, "it")

    assert message in str(caught.value)


def test_limits_count_no_character_of_a_string() -> None:
    text = json.dumps({"[{," * 50 + "\\": ["]],," + '\\" ' * 50]})

    assert read(text, "it", limits=Limits(depth=2, values=3)) == json.loads(text)


def test_a_whole_pair_of_surrogates_is_a_character() -> None:
    assert read('"\\ud83d\\ude00"', "it") == "\U0001f600"


def test_more_digits_than_python_converts_are_refused_like_others() -> None:
    digits = sys.get_int_max_str_digits() + 1

    with pytest.raises(InvalidJson):
        read("9" * digits, "it", limits=Limits(digits=digits))
