"""Versions of vLLM: parsing, order, and ranges."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.errors import UserError
from peagle.vllm.versions import compare, in_range, normalize, parse
from tests.support import raises_code

NUMBERS = st.tuples(*[st.integers(min_value=0, max_value=10_000)] * 3)
VERSIONS = NUMBERS.map(lambda numbers: ".".join(map(str, numbers)))
TEXT = st.text(alphabet="0123456789.v+-ab ,<>=", max_size=12)


@given(NUMBERS)
def test_a_version_is_its_three_numbers(numbers: tuple[int, int, int]) -> None:
    assert parse(".".join(map(str, numbers))) == numbers


@given(st.integers(0, 999), st.integers(0, 999))
def test_a_short_version_ends_in_zero(major: int, minor: int) -> None:
    assert compare(f"{major}.{minor}", f"{major}.{minor}.0") == 0
    assert normalize(f"{major}.{minor}") == f"{major}.{minor}.0"


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


@given(TEXT)
def test_any_text_is_refused_or_normalized(text: str) -> None:
    try:
        once = normalize(text)
    except UserError:
        return

    assert normalize(once) == once


@given(VERSIONS, TEXT)
def test_any_range_is_refused_or_evaluated(version: str, versions: str) -> None:
    with suppress(UserError):
        assert in_range(version, versions) in (True, False)


@pytest.mark.parametrize(
    "text", ["", "0", "v0.28.0", "0.28.0.1", "0.28.0+cpu", "0.28.x", "\u0660.28"]
)
def test_other_spellings_of_versions_are_refused(text: str) -> None:
    with raises_code("invalid-version", UserError) as refused:
        parse(text)

    assert refused.value.fix == "write it like 0.28.0"


@pytest.mark.parametrize("versions", ["", "0.18.0", ">=0.18.0,", "~=0.18.0", ">= 0.18.0", "<0.1,x"])
def test_other_spellings_of_ranges_are_refused_after_a_false_part(
    versions: str,
) -> None:
    with raises_code("invalid-version", UserError):
        in_range("9.9.9", versions)
