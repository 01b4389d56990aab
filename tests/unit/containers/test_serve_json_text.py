"""Parts of a JSON text, with their range in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_serve.environment import elements, members, object_sequence
from peagle_serve.json_reader import InvalidJson

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
INDENT = st.sampled_from([None, 0, 3, "\t"])


@pytest.mark.thorough
@given(st.lists(JSON, max_size=6), INDENT)
def test_elements_have_the_range_of_their_text(values: list[Any], indent: int | str | None) -> None:
    text = f" {json.dumps(values, indent=indent)}\n"

    parts = elements(text)

    assert [part.value for part in parts] == values
    assert [json.loads(text[part.start : part.end]) for part in parts] == values


@pytest.mark.thorough
@given(st.dictionaries(TEXT, JSON, max_size=6), INDENT)
def test_members_have_the_range_of_their_text(
    values: dict[str, Any], indent: int | str | None
) -> None:
    text = f"\t{json.dumps(values, indent=indent)} "

    parts = members(text)

    assert {name: part.value for name, part in parts.items()} == values
    assert {name: json.loads(text[part.start : part.end]) for name, part in parts.items()} == values


def test_two_equal_names_are_refused() -> None:
    with pytest.raises(InvalidJson, match="has 'k' twice"):
        members('{"k": 1, "k": {"k": 2}}')


@pytest.mark.parametrize("read", [elements, members])
@pytest.mark.parametrize("text", ["", "{", "[1,]", '{"a" 1}', '{"a": 1} x', "nul"])
def test_text_that_is_not_json_is_refused(text: str, read: Callable[[str], object]) -> None:
    with pytest.raises((json.JSONDecodeError, InvalidJson)):
        read(text)


@pytest.mark.parametrize("read", [elements, members])
@pytest.mark.parametrize("text", ['"a"', "1"])
def test_other_json_is_neither_array_nor_object(text: str, read: Callable[[str], object]) -> None:
    with pytest.raises(ValueError, match="not a JSON"):
        read(text)


@pytest.mark.parametrize("text", ['{"a":1} 2', "{} {", "{% x %}", "{}, {}"])
def test_only_consecutive_objects_are_a_sequence(text: str) -> None:
    assert object_sequence(text) == []
