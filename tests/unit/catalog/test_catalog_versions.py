"""Versions of vLLM: parsing, order, and ranges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.errors import UserError
from peagle.vllm.versions import compare, in_range, parse
from tests.support import raises_code

NUMBERS = st.tuples(*[st.integers(min_value=0, max_value=10_000)] * 3)
VERSIONS = NUMBERS.map(lambda numbers: ".".join(map(str, numbers)))


@given(NUMBERS, NUMBERS)
def test_versions_are_ordered_by_number(
    left: tuple[int, int, int], right: tuple[int, int, int]
) -> None:
    sign = (left > right) - (left < right)
    assert compare(".".join(map(str, left)), ".".join(map(str, right))) == sign


@given(VERSIONS, VERSIONS)
def test_the_comparisons_of_a_range_agree_with_compare(version: str, bound: str) -> None:
    order = compare(version, bound)
    assert in_range(version, f"<{bound}") == (order < 0)
    assert in_range(version, f"<={bound}") == (order <= 0)
    assert in_range(version, f"=={bound}") == (order == 0)
    assert in_range(version, f">={bound}") == (order >= 0)
    assert in_range(version, f">{bound}") == (order > 0)


@given(VERSIONS, VERSIONS, VERSIONS)
def test_all_parts_of_a_range_must_hold(version: str, low: str, high: str) -> None:
    both = in_range(version, f">={low}") and in_range(version, f"<{high}")
    assert in_range(version, f">={low},<{high}") == both


@pytest.mark.parametrize(
    "text", ["", "0", "v0.28.0", "0.28.0.1", "0.28.0+cpu", "0.28.x", "\u0660.28"]
)
def test_other_spellings_of_versions_are_refused(text: str) -> None:
    with raises_code("invalid-version", UserError) as refused:
        parse(text)
    assert refused.value.fix == "write it like 0.28.0"
