"""Amounts of money are written in one way, wherever they are written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import peagle
from peagle.text import dollars, price_words

_OF_ITS_OWN = re.compile(r"\$\{[^{}]*:[^{}]*[fg]\}")
"""An f-string that formats an amount by itself, such as ``${price:.2f}``."""


@pytest.mark.parametrize(
    ("usd", "words"),
    [
        (0.0, "$0.00"),
        (2.605, "$2.60"),
        (63.2958, "$63.30"),
        (1519.1, "$1,519.10"),
        (1e6, "$1,000,000.00"),
    ],
)
def test_an_amount_has_cents_and_its_thousands_apart(usd: float, words: str) -> None:
    assert dollars(usd) == words


def test_hour_day_and_month_are_written_alike() -> None:
    words = price_words(63.2958)

    assert words == "$63.30 per hour, $1,519.10 per day"
    assert price_words(63.2958, month=True) == f"{words}, $46,205.93 per month"


def test_no_module_formats_money_by_itself() -> None:
    root = Path(peagle.__file__).parent
    by_themselves = [
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if _OF_ITS_OWN.search(path.read_text(encoding="utf-8")) and path.name != "text.py"
    ]

    assert by_themselves == []
