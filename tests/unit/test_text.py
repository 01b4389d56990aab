"""Money, durations and sizes have one format everywhere, and are read as they are printed."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.errors import fix_text
from peagle.text import (
    exact_duration,
    format_decimal,
    format_duration,
    format_price,
    format_size,
    format_usd,
    join_with_or,
    parse_duration,
    parse_requests,
    parse_share,
    parse_tokens,
    usd_per_million,
)

TEXTS: list[tuple[Callable[[Any], Any], dict[Any, Any]]] = [
    (format_usd, {0.0: "$0.00", 2.605: "$2.60", 63.2958: "$63.30", 1519.1: "$1,519.10"}),
    (format_price, {
        63.2958: "$63.30 per hour, $1,519.10 per day", None: "unknown",
        0.0: "$0.00 per hour, $0.00 per day"}),
    (parse_duration, {
        "1h30m": 5400, "17h 44m": 63840, "5m 00s": 300, "1h 00m": 3600, "2d 1s": 172801,
        " 8h ": 28800, "1d2h3m4s": 93784, "0s": 0, "999999999d": 999999999 * 86400}),
    (format_duration, {
        0: "0s", 59.9: "59s", 60: "1m 00s", 3599: "59m 59s", 3600: "1h 00m", 7322: "2h 02m"}),
    (format_decimal, {0.000001: "0.000001", 0.5: "0.5", 2.0: "2", 1e16: "1" + "0" * 16}),
    (parse_tokens, {
        "1": 1, "8192": 8192, "8,192": 8192, "131_072": 131072, "8k": 8192, "64K": 65536,
        "1.5k": 1536, "1m": 1048576}),
    (join_with_or, {("a",): "a", ("a", "b"): "a or b", ("a", "b", "c"): "a, b or c"}),
    (format_size, {4e5: "0.4 MB", 9.2e6: "9.2 MB", 1.4e7: "14 MB", 1.38e10: "13.8 GB"}),
    (parse_share, {"10%": 0.1, "0.25": 0.25, "99.9%": 0.999, "0.1%": 0.001}),
]  # fmt: skip


@pytest.mark.parametrize(("function", "values"), TEXTS, ids=range(len(TEXTS)))
def test_what_is_printed_and_read(function: Callable[[Any], Any], values: dict[Any, Any]) -> None:
    assert {value: function(value) for value in values} == values


WRONG: list[tuple[Callable[[str], Any], str, tuple[str, ...]]] = [
    (parse_duration, "is not a duration such as 90s, 10m, 1h30m or 2d", (
        "", " ", "8", "h", "30m 1h", "1h1h", "1h  30m", "1 h", "1h,30m", "-1h", "1234567890s")),
    (parse_tokens, "is not a number of tokens such as 8192 or 8k", (
        "", "0", "0k", "k", "-8", "8kk", "8 k", "1.5", "0.3k", "8,19", "8g", "\u0668k", "1e3")),
    (parse_requests, "is not a number of requests such as", ("5k", "0", "many", "2.5", "-1")),
    (parse_share, "such as 10%", ("", ".", "0", "100%", "1", "-5%", "ten", "0.01%")),
]  # fmt: skip


@pytest.mark.parametrize(("function", "message", "texts"), WRONG, ids=range(len(WRONG)))
def test_other_texts_are_refused(
    function: Callable[[str], Any], message: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message):
            function(text)


def test_prices_of_a_month_of_the_sandbox_and_of_a_million_tokens() -> None:
    assert format_price(63.2958, month=True).endswith(", $46,205.93 per month")
    assert "free in the sandbox" in format_price(1.0, sandbox=True)
    assert usd_per_million(3.6, 1000.0) == 1.0
    assert usd_per_million(0.0, 1000.0) == 0.0
    assert usd_per_million(None, 1000.0) is usd_per_million(3.6, None) is None
    assert usd_per_million(3.6, 0.0) is None


@given(st.integers(1, 400 * 86400))
def test_a_duration_that_the_tool_prints_can_be_typed(seconds: int) -> None:
    printed = format_duration(seconds)
    shown = seconds // 60 * 60 if seconds >= 3600 else seconds
    assert parse_duration(printed) == parse_duration(printed.replace(" ", "")) == shown
    assert parse_duration(exact_duration(seconds)) == seconds


@given(st.text())
def test_other_text_is_not_a_duration(text: str) -> None:
    if re.fullmatch(r"\s*(?:[0-9]{1,9}[smhd] ?)+\s*", text, re.ASCII):
        return
    with pytest.raises(ValueError, match="90s, 10m, 1h30m or 2d"):
        parse_duration(text)


@given(st.integers(1, 10**9))
def test_a_number_is_as_many_requests(number: int) -> None:
    assert parse_requests(f"{number}") == parse_requests(f"{number:,}") == number


def test_a_question_is_followed_by_the_command_without_a_colon() -> None:
    assert fix_text("did you mean tiny?", ("peagle", "plan", "tiny")) == (
        "did you mean tiny? peagle plan tiny"
    )
    assert fix_text("plan it", ("peagle", "plan")) == "plan it: peagle plan"
