"""JSON from outside is read strictly; variables become vLLM's arguments byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_serve.contract import InvalidEnvironment
from peagle_serve.environment import arguments, tokens_of
from peagle_serve.json_reader import InvalidJson, read

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
INDENT = st.sampled_from([None, 0, 3, "\t"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is not valid JSON: Expecting value (line 1, column 1)"),
        ('{"a":\n 1,}', "(line 2, column 4)"),
        ('{"a": {"b": 1, "b": 2}}', "it has 'b' twice in one object"),
        ("[1,\n NaN]", "it has NaN, which is not JSON"),
        ("-Infinity", "it has -Infinity, which is not JSON"),
        ("[1e400]", "it has the number 1e400, which is too large"),
        ("9" * 5000, "it cannot be read: Exceeds the limit"),
        ('{"a":' * 100_000, "it cannot be read: maximum recursion depth"),
        (" " * (8 << 20) + "1", "it is longer than 8,388,608 bytes"),
        ('["\\ud800"]', "it has half of a surrogate pair"),
        ('{"\\uDFFF": 1}', "it has half of a surrogate pair"),
        ('"\ud800"', "it is not UTF-8 (invalid character at offset 1)"),
        (b'"\xff"', "it is not UTF-8 (invalid byte at offset 1)"),
        (b"\xff\xfe1\x00", "it is not UTF-8 (invalid byte at offset 0)"),
        (b"\xef\xbb\xbf1", "it is not valid JSON: Unexpected UTF-8 BOM"),
        ("\x00", "it is not valid JSON"),
    ],
    ids=range(16),
)
def test_what_is_refused_and_where(text: str | bytes, message: str) -> None:
    with pytest.raises(InvalidJson) as caught:
        read(text, "it")
    assert message in str(caught.value)


@pytest.mark.thorough
@given(st.lists(VALUE, max_size=6), INDENT)
def test_elements_of_an_array_are_tokens_as_they_are_written(
    values: list[Any], indent: int | str | None
) -> None:
    tokens = tokens_of("--x", f" {json.dumps(values, indent=indent)}\n")
    texts = [str, type(None)]
    assert [t for t, v in zip(tokens, values, strict=True) if type(v) in texts] == [
        v or "" for v in values if type(v) in texts
    ]
    assert [json.loads(t) for t, v in zip(tokens, values, strict=True) if type(v) not in texts] == [
        v for v in values if type(v) not in texts
    ]


@pytest.mark.parametrize(
    ("value", "argv"),
    [
        ("8", ["--x-y", "8"]),
        ("true", ["--x-y"]),
        (" True ", ["--x-y"]),
        ("", ["--x-y"]),
        ("false", []),
        ("FALSE", []),
        (" ", ["--x-y", " "]),
        ("a b", ["--x-y", "a b"]),
        ('{"a": 1}', ["--x-y", '{"a": 1}']),
        ('["a", "b c"]', ["--x-y", "a", "b c"]),
        ("[]", []),
        ('[{"a":  1}, 2.50, true, null]', ["--x-y", '{"a":  1}', "2.50", "true", ""]),
        ('{"a":1} {"b":2}', ["--x-y", '{"a":1}', '{"b":2}']),
        ("[not json]", ["--x-y", "[not json]"]),
        ("[1,]", ["--x-y", "[1,]"]),
        *((text, ["--x-y", text]) for text in ('{"a":1} 2', "{} {", "{}, {}")),
        ("{% for m in messages %}{{ m }}", ["--x-y", "{% for m in messages %}{{ m }}"]),
        ("-1", ["--x-y=-1"]),
        ("--model", ["--x-y=--model"]),
        ("[-1, 2, -0.5]", ["--x-y", "-1", "2", "-0.5"]),
    ],
)
def test_a_value_becomes_the_same_tokens_as_in_awss_container(value: str, argv: list[str]) -> None:
    assert arguments({"SM_VLLM_X_Y": value}) == argv


@pytest.mark.parametrize("value", ['["a", "-b"]', '["-a", "b"]', '["--model", ""]', "--", '["--"]'])
def test_what_vllm_would_read_as_an_argument_is_refused(value: str) -> None:
    with pytest.raises(InvalidEnvironment, match="SM_VLLM_X_Y has the value"):
        arguments({"SM_VLLM_X_Y": value})


def test_arguments_are_sorted_by_name_and_other_variables_ignored() -> None:
    environment = {"SM_VLLM_B": "2", "HF_TOKEN": "secret", "SM_VLLM_A": "1", "VLLM_C": "3"}
    assert arguments(environment) == ["--a", "1", "--b", "2"]
    for flag in ("ALLOWED_ORIGINS", "ALLOWED_METHODS", "ALLOWED_HEADERS"):
        assert arguments({f"SM_VLLM_{flag}": '["a", "b"]'})[1:] == ['["a", "b"]'], "vLLM parses it"
