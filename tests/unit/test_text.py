"""Money, durations and sizes have one format everywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import peagle
from peagle.text import (
    duration_argument,
    format_duration,
    format_price,
    format_size,
    format_usd,
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


@given(st.text())
def test_other_text_is_no_duration(text: str) -> None:
    digits, unit = text[:-1], text[-1:]
    if digits.isascii() and digits.isdigit() and len(digits) < 10 and unit in ("s", "m", "h", "d"):
        return
    with pytest.raises(ValueError, match="90s, 10m, 12h or 2d"):
        parse_duration(text)


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
    ("size", "text"),
    [(4e5, "0.4 MB"), (9.2e6, "9.2 MB"), (1.4e7, "14 MB"), (1.38e10, "13.8 GB")],
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
