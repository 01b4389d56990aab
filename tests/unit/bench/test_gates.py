"""Gates on a measurement: each limit, and what was not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.bench.report import BenchGates, require_gates
from peagle.bench.result import BenchResult, MeasuredAcceptance
from peagle.errors import Refused
from peagle.speed.slo import Slo
from tests.support import raises_code
from tests.unit.bench.made import RESULT


def result(**changes: Any) -> BenchResult:
    return replace(RESULT, rows=(replace(RESULT.rows[0], **changes),))


MEASURED = result(usd_per_million_tokens=2.0, acceptance=MeasuredAcceptance(2.5, (0.9, 0.6), 1000))
UNKNOWN = result(itl=None, usd_per_million_tokens=None, acceptance=None)


def test_what_every_load_reaches_passes() -> None:
    require_gates(MEASURED, BenchGates(Slo(ttft=0.01), 300.0, 2.0, 2.5))


@pytest.mark.parametrize(
    ("measured", "gates", "miss"),
    [
        (MEASURED, BenchGates(slo=Slo(ttft=0.005)), "1 at a time: TTFT in s 0.01, at most 0.005"),
        (MEASURED, BenchGates(min_tokens_per_second=600), "tokens/s 300, at least 600"),
        (MEASURED, BenchGates(max_usd_per_million_tokens=1.0), "million tokens 2, at most 1"),
        (MEASURED, BenchGates(min_acceptance_length=3.0), "acceptance length 2.5, at least 3"),
        (UNKNOWN, BenchGates(Slo(itl=1.0), None, 5.0, 1.0), "unknown, at most 1 (and 2 more)"),
    ],
)
def test_each_limit_is_a_gate(measured: BenchResult, gates: BenchGates, miss: str) -> None:
    with raises_code("gate-missed", Refused) as refused:
        require_gates(measured, gates)
    assert miss in refused.value.message
