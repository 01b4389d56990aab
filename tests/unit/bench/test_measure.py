"""One load: its numbers, from requests whose times are known; failures; saturation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from peagle.bench.aiperf import CpuReading, Sent, SentRequest
from peagle.bench.measure import (
    BenchTarget,
    evaluate,
    queue_reason,
    with_saturation,
)
from peagle.bench.result import (
    BenchedServer,
    BenchLoad,
    BenchRow,
    BenchSetting,
    BenchWorkload,
    Interval,
)
from peagle.bench.server import OpenAiServer
from peagle.errors import EngineError
from peagle.protocol import Counters
from peagle.speed.models import Workload
from tests.support import raises_code

SERVER = OpenAiServer("http://127.0.0.1:1/v1", "m")
TARGET = BenchTarget(
    SERVER,
    BenchedServer("x", "url", SERVER.base_url, "m"),
    BenchSetting(None, 0, is_known=False),
    usd_per_hour=3.6,
)
LOAD = BenchLoad(BenchWorkload("short-prompt", Workload(128, 41)), 2, 4)


def request(repetition: int, start: float, seconds: float = 1.0) -> SentRequest:
    """Its first output after a fifth of the time, then 20 outputs of two tokens."""
    gap = 0.8 * seconds / 20
    return SentRequest(repetition, start, start + seconds, 0.2 * seconds, (gap,) * 20, 128, 41)


def requests(*seconds: float) -> list[SentRequest]:
    """Repetitions of four requests, two at a time, whose requests take so long."""
    found = [request(0, 0.0), request(0, 0.0)]
    start = 2.0
    for number, each in enumerate(seconds, 1):
        for wave in range(2):
            found += [request(number, start + wave * each, each) for _ in range(2)]
        start += 2 * each
    return found


def evaluated(sent: Sequence[SentRequest]) -> BenchRow:
    return evaluate(TARGET, LOAD, Sent(tuple(sent)), None)


def test_speed_latencies_and_cost_are_those_of_the_requests() -> None:
    slow = [replace(request, end=request.end + 100, ttft=100.0) for request in requests()]
    row = evaluated([*slow, *requests(1.0, 1.0, 1.0)[2:]])  # the warm-up is not counted

    assert row.tokens_per_second == Interval(82.0, 82.0, 82.0)
    assert row.ttft is not None
    assert row.ttft.p50 == pytest.approx(0.2)
    assert row.ttft.count == 12
    assert row.itl is not None
    assert row.itl.mean == pytest.approx(0.04)
    assert row.tpot is not None
    assert row.tpot.mean == pytest.approx(0.02)
    assert (row.prompt_tokens, row.output_tokens) == (128, 41)
    # $3.60 per hour is a tenth of a cent per second, for 82 tokens.
    assert row.usd_per_million_tokens == pytest.approx(0.001 / 82 * 1e6)
    assert not row.incomplete
    assert not row.saturated
    spread = evaluated(requests(1.0, 1.1, 0.9)).tokens_per_second
    assert spread.low < spread.value < spread.high


def test_acceptance_is_that_of_the_counters_and_tells_k() -> None:
    counted = Counters(100, 300, 120, (70, 35, 15))

    row = evaluate(TARGET, LOAD, Sent(tuple(requests(1.0, 1.0, 1.0))), counted)

    assert row.acceptance is not None
    assert row.acceptance.length == pytest.approx(2.2)
    assert row.acceptance.per_position == (0.7, 0.35, 0.15)
    assert row.setting == BenchSetting(None, 3)


def test_without_counters_it_is_unknown_whether_a_server_speculates() -> None:
    sent = Sent(tuple(requests(1.0, 1.0, 1.0)))

    assert evaluate(TARGET, LOAD, sent, None).setting.text == "unknown whether it speculates"
    assert evaluate(TARGET, LOAD, sent, Counters(0, 0, 0)).setting.text == "no speculation"


def test_a_server_that_dies_keeps_the_repetitions_before() -> None:
    sent = requests(1.0, 1.0, 1.0)
    died = [replace(one, error="the server refuses the connection") for one in sent[8:]]

    row = evaluated([*sent[:8], *died])

    assert row.tokens_per_second.value == pytest.approx(82.0)
    assert len(row.repetitions) == 2  # the second lost two requests
    assert "1 of 3 repetitions are complete" in row.incomplete
    assert "the server refuses the connection" in row.incomplete
    short = Sent(tuple(requests(1.0, 1.0)), error="aiperf left out 4 of 14 requests")
    assert "aiperf left out 4" in evaluate(TARGET, LOAD, short, None).incomplete


def test_without_a_successful_request_the_error_says_why() -> None:
    failed = [replace(one, error="HTTP 500: died") for one in requests(1.0)]

    with raises_code("load-failed", EngineError) as refused:
        evaluated(failed)
    assert "HTTP 500: died" in refused.value.message


def test_the_engines_own_queue_decides_where_it_is_known() -> None:
    sent = requests(1.0, 1.0, 1.0)[2:]

    reason = queue_reason(LOAD, sent, [(2.5, 1.0), (3.5, 1.0), (4.5, 0.0)])

    assert reason == "1 of 2 requests wait in the engine's queue"
    assert not queue_reason(LOAD, sent, [(2.5, 0.0), (3.5, 1.0), (4.5, 0.0)])
    late = [replace(request, ttft=0.7) for request in sent]
    assert "wait 0.7 s" in queue_reason(LOAD, late, []), "else the times decide"


def test_more_requests_without_more_tokens_are_saturation() -> None:
    row = evaluated(requests(1.0, 1.0, 1.0))
    more = replace(row, load=replace(LOAD, concurrency=8))
    faster = replace(more, tokens_per_second=Interval(160.0, 150.0, 170.0))

    assert (
        "no more tokens per second than with 2 requests"
        in with_saturation([row, more])[1].saturated
    )
    assert [one.saturated for one in with_saturation([row, faster])] == ["", ""]


def test_the_use_of_the_cpus_is_that_of_the_repetition() -> None:
    readings = (CpuReading(1.9, 0.1, 0.2), CpuReading(2.5, 0.6, 0.5), CpuReading(3.0, 1.0, 1.0))
    row = evaluate(TARGET, LOAD, Sent(tuple(requests(1.0, 1.0, 1.0)), readings), None)

    assert (row.sender_cpu_share, row.machine_cpu_share) == pytest.approx((0.8, 0.75))
    assert row.repetitions[1].sender_cpu_share is None
