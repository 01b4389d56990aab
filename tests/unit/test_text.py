"""Money, durations and sizes have one format everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import peagle
from peagle.errors import fix_text
from peagle.text import (
    duration_argument,
    exact_duration,
    format_decimal,
    format_duration,
    format_price,
    format_size,
    format_usd,
    one_of,
    parse_duration,
    parse_requests,
    parse_share,
    parse_tokens,
    usd_per_million,
)

_AMOUNT = re.compile(r"\$\{[^{}]*:[^{}]*[fg]\}")
"""An amount of money in an f-string, such as ``${price:.2f}``."""


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "$0.00"),
        (2.605, "$2.60"),
        (63.2958, "$63.30"),
        (1519.1, "$1,519.10"),
        (1e6, "$1,000,000.00"),
    ],
)
def test_usd_has_cents_and_thousands_separators(usd: float, text: str) -> None:
    assert format_usd(usd) == text


def test_price_is_per_hour_day_and_month() -> None:
    text = format_price(63.2958)
    assert text == "$63.30 per hour, $1,519.10 per day"
    assert format_price(63.2958, month=True) == f"{text}, $46,205.93 per month"
    assert format_price(None) == "unknown"
    assert format_price(0.0) == "$0.00 per hour, $0.00 per day"
    assert "free in the sandbox" in format_price(1.0, sandbox=True)


def test_the_price_of_a_million_tokens_needs_a_price_and_a_speed() -> None:
    assert usd_per_million(3.6, 1000.0) == 1.0
    assert usd_per_million(0.0, 1000.0) == 0.0
    assert usd_per_million(None, 1000.0) is usd_per_million(3.6, None) is None
    assert usd_per_million(3.6, 0.0) is None


def test_no_other_module_formats_money() -> None:
    root = Path(peagle.__file__).parent
    others = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if _AMOUNT.search(path.read_text(encoding="utf-8")) and path.name != "text.py"
    ]
    assert others == []


@given(number=st.integers(0, 999_999_999), unit=st.sampled_from("smhd"))
def test_duration_is_a_number_of_units(number: int, unit: str) -> None:
    seconds = {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]
    assert parse_duration(f"{number}{unit}") == number * seconds


@given(st.integers(1, 400 * 86400))
def test_a_duration_that_the_tool_prints_can_be_typed(seconds: int) -> None:
    printed = format_duration(seconds)
    shown = seconds // 60 * 60 if seconds >= 3600 else seconds
    assert parse_duration(printed) == parse_duration(printed.replace(" ", "")) == shown
    assert parse_duration(exact_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h30m", 5400), ("17h 44m", 63840), ("5m 00s", 300), ("1h 00m", 3600), ("2d 1s", 172801),
     (" 8h ", 28800), ("1d2h3m4s", 93784), ("0s", 0)],
)  # fmt: skip
def test_a_duration_may_have_several_units(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@given(st.text())
def test_other_text_is_not_a_duration(text: str) -> None:
    if re.fullmatch(r"\s*(?:[0-9]{1,9}[smhd] ?)+\s*", text, re.ASCII):
        return
    with pytest.raises(ValueError, match=r"90s, 10m, 1h30m or 2d|has no unit"):
        parse_duration(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "h", "30m 1h", "1h1h", "1h  30m", "1 h", "1h,30m", "-1h", "1.5h", "1234567890s"],
)
def test_units_of_a_duration_descend(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 90s, 10m, 1h30m or 2d"):
        parse_duration(text)


def test_a_number_without_a_unit_is_suggested_with_one() -> None:
    with pytest.raises(ValueError, match="'8' has no unit: write 8s, 8m or 8h"):
        parse_duration("8")
    with pytest.raises(ValueError, match="'8' has no unit: write 8h or 8d"):
        parse_duration("8", "hd")


@pytest.mark.parametrize(
    ("number", "text"), [(0.000001, "0.000001"), (0.5, "0.5"), (2.0, "2"), (1e16, "1" + "0" * 16)]
)
def test_a_decimal_has_the_digits_that_were_typed(number: float, text: str) -> None:
    assert format_decimal(number) == text


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("1", 1),
        ("8192", 8192),
        ("8,192", 8192),
        ("131_072", 131072),
        ("8k", 8192),
        ("64K", 65536),
        ("1.5k", 1536),
        ("1m", 1048576),
    ],
)
def test_tokens_may_be_written_with_a_unit(text: str, tokens: int) -> None:
    assert parse_tokens(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "0", "0k", "k", "-8", "8kk", "8 k", "1.5", "0.3k", "8,19", "8g", "\u0668k", "1e3"]
)
def test_other_text_is_no_number_of_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of tokens such as 8192 or 8k"):
        parse_tokens(text)


@pytest.mark.parametrize(
    ("names", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_one_of_several_names(names: list[str], text: str) -> None:
    assert one_of(names) == text


def test_a_question_is_followed_by_the_command_without_a_colon() -> None:
    assert fix_text("did you mean tiny?", ("peagle", "plan", "tiny")) == (
        "did you mean tiny? peagle plan tiny"
    )
    assert fix_text("plan it", ("peagle", "plan")) == "plan it: peagle plan"


@given(st.integers(1, 10**9))
def test_a_number_is_as_many_requests(number: int) -> None:
    assert parse_requests(f"{number}") == parse_requests(f"{number:,}") == number


@pytest.mark.parametrize("text", ["5k", "0", "many", "2.5", "-1"])
def test_other_text_is_no_number_of_requests(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of requests such as 8 or 5000"):
        parse_requests(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m 00s"),
        (3599, "59m 59s"),
        (3600, "1h 00m"),
        (7322, "2h 02m"),
    ],
)
def test_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 1e8))
def test_duration_as_an_argument_is_rounded_up(seconds: float) -> None:
    assert parse_duration(duration_argument(seconds)) >= seconds


@pytest.mark.parametrize(
    ("size", "text"), [(4e5, "0.4 MB"), (9.2e6, "9.2 MB"), (1.4e7, "14 MB"), (1.38e10, "13.8 GB")]
)
def test_size_is_in_mb_or_gb(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("text", "share"), [("10%", 0.1), ("0.25", 0.25), ("99.9%", 0.999), ("0.1%", 0.001)]
)
def test_a_share_is_a_percentage_or_a_fraction(text: str, share: float) -> None:
    assert parse_share(text) == share


@pytest.mark.parametrize("text", ["", ".", "0", "100%", "1", "-5%", "ten", "0.01%"])
def test_other_text_is_no_share(text: str) -> None:
    with pytest.raises(ValueError, match="such as 10%"):
        parse_share(text)
