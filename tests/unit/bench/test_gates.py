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
from tests.unit.bench.made import two_workloads


def result(**changes: Any) -> BenchResult:
    made = two_workloads()
    return replace(made, rows=(replace(made.rows[0], **changes),))


MEASURED = result(usd_per_million_tokens=2.0, acceptance=MeasuredAcceptance(2.5, (0.9, 0.6), 1000))
ROW = MEASURED.rows[0]
assert ROW.ttft is not None
SPEED, TTFT = ROW.tokens_per_second.value, ROW.ttft.mean


def test_what_every_load_reaches_passes() -> None:
    gates = BenchGates(Slo(ttft=TTFT), SPEED, 2.0, 2.5)

    require_gates(MEASURED, gates)


@pytest.mark.parametrize(
    ("gates", "miss"),
    [
        (BenchGates(slo=Slo(ttft=TTFT / 2)), "TTFT in s "),
        (BenchGates(min_tokens_per_second=SPEED * 2), "tokens/s "),
        (BenchGates(max_usd_per_million_tokens=1.0), "USD per million tokens 2, at most 1"),
        (BenchGates(min_acceptance_length=3.0), "acceptance length 2.5, at least 3"),
    ],
)
def test_each_limit_is_a_gate(gates: BenchGates, miss: str) -> None:
    with raises_code("gate-missed", Refused) as refused:
        require_gates(MEASURED, gates)

    assert f"{ROW.load.concurrency} at a time: {miss}" in refused.value.message


def test_what_was_not_measured_misses_its_gate() -> None:
    gates = BenchGates(Slo(itl=1.0), None, 5.0, 1.0)
    unknown = result(itl=None, usd_per_million_tokens=None, acceptance=None)

    with raises_code("gate-missed", Refused) as refused:
        require_gates(unknown, gates)
    assert "(and 2 more)" in refused.value.message
