"""The objective ``ttft=0.5,itl=0.02``: what it means, and what it does not accept."""

from __future__ import annotations

import pytest

from peagle.errors import UserError
from peagle.speed.slo import Slo, parse_slo
from tests.support import raises_code


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft=0.5,itl=0.02", Slo(0.5, 0.02)),
        ("itl=0.02", Slo(None, 0.02)),
        (" ttft = 1 ", Slo(1.0, None)),
        ("ttft=0.000001", Slo(0.000001, None)),
    ],
)
def test_times_are_seconds(text: str, slo: Slo) -> None:
    assert parse_slo(text) == slo
    assert parse_slo(slo.text) == slo


@pytest.mark.parametrize(
    "text",
    ["", "0.5", "tpot=0.1", "ttft=1,ttft=2", "ttft=0.5,itl", "ttft=", "ttft=0", "ttft=-1",
     "ttft=nan", "ttft=inf", "itl=20ms"],
)  # fmt: skip
def test_another_text_is_one_error(text: str) -> None:
    with raises_code("invalid-slo", UserError):
        parse_slo(text)


def test_the_excess_is_that_of_the_worse_time() -> None:
    slo = Slo(ttft=0.5, itl=0.02)
    assert slo.excess(0.25, 0.01) == 0.5
    assert slo.excess(0.25, 0.04) == 2
    assert slo.excess(None, 0.01) is None
    assert Slo(ttft=0.5).excess(0.25, None) == 0.5
    assert Slo().excess(None, None) == 0
