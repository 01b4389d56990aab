"""One load: its numbers, from requests whose times are known; failures; intervals; and
aiperf's records of requests."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from peagle.bench.load import (
    Sent,
    SentRequest,
    evaluate,
    requests_in,
)
from peagle.bench.result import (
    BenchedServer,
    BenchLoad,
    BenchResult,
    BenchRow,
    BenchSetting,
    BenchWorkload,
    Interval,
    MeasuredAcceptance,
    ratio_interval,
    t_quantile,
)
from peagle.bench.targets import BenchTarget, OpenAiServer
from peagle.bench.variants import (
    Minute,
    Minutes,
    VariantComparison,
    VariantResult,
    compare_variants,
    relative_change,
)
from peagle.bench.winners import BenchGates, require_gates
from peagle.errors import EngineError, Refused
from peagle.protocol import Counters
from peagle.workload import Slo, Workload
from tests.support import raises_code
from tests.unit.bench.made import RESULT

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
    made = [request(0, 0.0), request(0, 0.0)]
    start = 2.0
    for number, each in enumerate(seconds, 1):
        for wave in range(2):
            made += [request(number, start + wave * each, each) for _ in range(2)]
        start += 2 * each
    return made


THREE = requests(1.0, 1.0, 1.0)


def evaluated(
    sent: Sequence[SentRequest], counted: Counters | None = None, **more: Any
) -> BenchRow:
    return evaluate(TARGET, LOAD, Sent(tuple(sent), **more), counted)


def test_speed_latencies_and_cost_are_those_of_the_requests() -> None:
    slow = [replace(request, end=request.end + 100, ttft=100.0) for request in THREE[:2]]
    row = evaluated([*slow, *THREE[2:]])  # the warm-up is not counted
    assert row.tokens_per_second == Interval(82.0, 82.0, 82.0)
    assert row.ttft
    assert row.itl
    assert row.tpot
    assert row.ttft.count == 12
    times = (row.ttft.p50, row.itl.mean, row.tpot.mean)
    assert times == pytest.approx((0.2, 0.04, 0.02))
    assert (row.prompt_tokens, row.output_tokens) == (128, 41)
    # $3.60 per hour is a tenth of a cent per second, for 82 tokens.
    assert row.usd_per_million_tokens == pytest.approx(0.001 / 82 * 1e6)
    assert row.incomplete == ""
    spread = evaluated(requests(1.0, 1.1, 0.9)).tokens_per_second
    assert spread.low < spread.value < spread.high


@pytest.mark.parametrize(("shared", "hits", "cached"), [
    (0, 800, 100.0), (20, 960, 100.0), (0, 0, 0.0), (0, None, None),
])  # fmt: skip
def test_of_conversations_the_later_turns_are_measured(
    shared: int, hits: int | None, cached: float | None
) -> None:
    """Warm-up and three repetitions of two conversations with two turns; a first turn takes long,
    and hits what all share. Second turns do not begin together: their speed is that of two."""
    workload = BenchWorkload("chat", Workload(128, 41, 110, shared), turns=2)
    load = BenchLoad(workload, 2, 4)
    sent = []
    for number in range(4):
        sent += [request(number, 20.0 * number, 10.0) for _ in range(2)]
        sent += [replace(request(number, 20.0 * number + at), turn=1) for at in (10, 14)]
    counted = Counters(cache_queries=1000, cache_hits=hits)
    row = evaluate(TARGET, load, Sent(tuple(sent)), counted)
    assert (row.incomplete, row.tokens_per_second.value) == ("", 82.0)
    thinking = replace(load, workload=replace(workload, think_seconds=1.0))
    slower = evaluate(TARGET, thinking, Sent(tuple(sent)), counted)
    assert slower.tokens_per_second.value == 41.0
    assert row.ttft
    assert row.first_turn_ttft
    assert (row.ttft.count, row.ttft.p50) == (6, 0.2)
    assert (row.first_turn_ttft.count, row.first_turn_ttft.p50) == (6, 2.0)
    assert row.cached_prompt_tokens == cached
    assert row.lacks_cache == (hits == 0)


def test_acceptance_is_that_of_the_counters_and_tells_k() -> None:
    row = evaluated(THREE, Counters(100, 300, 120, (70, 35, 15)))
    assert row.acceptance is not None
    assert row.acceptance.length == pytest.approx(2.2)
    assert row.acceptance.per_position == (0.7, 0.35, 0.15)
    assert row.setting == BenchSetting(None, 3)
    assert evaluated(THREE).setting.text == "unknown whether it speculates"
    assert evaluated(THREE, Counters(0, 0, 0)).setting.text == "no speculation"


def test_a_server_that_dies_keeps_the_repetitions_before() -> None:
    died = [replace(record, error="the server refuses the connection") for record in THREE[8:]]
    row = evaluated([*THREE[:8], *died])
    assert row.tokens_per_second.value == pytest.approx(82.0)
    assert len(row.repetitions) == 2  # the second lost two requests
    assert "1 of 3 repetitions are complete" in row.incomplete
    assert "the server refuses the connection" in row.incomplete
    short = evaluated(requests(1.0, 1.0), error="aiperf left out 4 of 14 requests")
    assert "aiperf left out 4" in short.incomplete
    with raises_code("load-failed", EngineError) as refused:
        evaluated([replace(record, error="HTTP 500: died") for record in requests(1.0)])
    assert "HTTP 500: died" in refused.value.message


def test_the_interval_is_that_of_students_t() -> None:
    mean = ratio_interval([(9.0, 1.0), (10.0, 1.0), (11.0, 1.0)])
    assert mean
    assert (mean.value, mean.low, mean.high) == pytest.approx((10, 7.5158, 12.4842), abs=1e-3)
    assert ratio_interval([]) is ratio_interval([(0, 0)]) is None
    assert ratio_interval([(6, 4), (0, 0)]) == Interval(1.5, 1.5, 1.5)
    for degrees, value in ((1, 12.706), (30, 2.042), (60, 2.000), (10**6, 1.96)):
        assert t_quantile(degrees) == pytest.approx(value, abs=2e-3)


# As aiperf 0.13.0 wrote them, without the metrics that are not read.
METADATA = {"session_num": 0, "request_start_ns": 1795360789440639418,
            "request_end_ns": 1795360789604441464, "benchmark_phase": "profiling",
            "phase_name": "load2", "was_cancelled": False}  # fmt: skip
GOOD: dict[str, Any] = {
    "metadata": METADATA,
    "metrics": {
        "time_to_first_token": {"value": 69.177212, "unit": "ms"},
        "inter_chunk_latency": {"value": [10.310284, 10.5], "unit": "ms"},
        "usage_completion_tokens": {"value": 20, "unit": "tokens"},
        "usage_prompt_tokens": {"value": 7, "unit": "tokens"},
    },
}
GONE = {
    "type": "ClientConnectorError",
    "message": "ClientConnectorError(ConnectionKey(host='127.0.0.1', port=8805))",
    "cause_chain": ["ClientConnectorError", "ConnectionRefusedError"],
}
FAILED = {"code": 500, "type": "X", "message": '{"error":{"message":"EngineCore died"}}'}


def line(document: Any) -> bytes:
    return json.dumps(document).encode() + b"\n"


def test_a_record_has_times_in_seconds_and_the_servers_tokens() -> None:
    """vLLM reports an error in a stream as an event, which aiperf does not count as an error."""
    metrics = {"time_to_first_token": GOOD["metrics"]["time_to_first_token"]}
    early = line({"metadata": METADATA, "metrics": metrics})
    good, ended = requests_in([line(GOOD), early])
    assert (good.repetition, good.prompt_tokens, good.output_tokens) == (2, 7, 20)
    assert (good.start, good.end) == pytest.approx((1795360789.440639, 1795360789.604441))
    assert good.ttft == pytest.approx(0.069177212)
    assert good.gaps == pytest.approx((0.010310284, 0.0105))
    assert (good.error, "ended early" in ended.error) == ("", True)


@pytest.mark.parametrize(("error", "message"), [
    (GONE, "ClientConnectorError("),
    (FAILED, "HTTP 500: EngineCore died"),
    ({"type": "ClientPayloadError", "message": "x"}, "x"),
    ({"type": "New", "message": "what\x1b is it"}, "what is it"),
    ("text", "text"),
])  # fmt: skip
def test_a_failed_request_has_one_clear_message(error: Any, message: str) -> None:
    (failed,) = requests_in([line({"metadata": METADATA, "metrics": {}, "error": error})])
    assert message in failed.error


@pytest.mark.parametrize("damaged", [
    b"[]\n",
    b"no json\n",
    line(GOOD | {"metadata": METADATA | {"phase_name": "other"}}),
    line(GOOD | {"metadata": METADATA | {"request_start_ns": "now"}}),
    line(GOOD | {"metrics": GOOD["metrics"] | {"usage_completion_tokens": {"value": 2.5}}}),
])  # fmt: skip
def test_another_format_is_an_error(damaged: bytes) -> None:
    with pytest.raises(EngineError):
        list(requests_in([damaged]))


# Gates on a measurement: each limit, and what was not measured.
def result(**changes: Any) -> BenchResult:
    return replace(RESULT, rows=(replace(RESULT.rows[0], **changes),))


MEASURED = result(usd_per_million_tokens=2.0, acceptance=MeasuredAcceptance(2.5, (0.9, 0.6), 1000))
UNKNOWN = result(itl=None, usd_per_million_tokens=None, acceptance=None)


def test_what_every_load_reaches_passes() -> None:
    require_gates(MEASURED, BenchGates(Slo(ttft=0.01), 300.0, 2.0, 2.5))


@pytest.mark.parametrize(("measured", "gates", "miss"), [
    (MEASURED, BenchGates(slo=Slo(ttft=0.005)), "1 at a time: TTFT in s 0.01, at most 0.005"),
    (MEASURED, BenchGates(min_tokens_per_second=600), "tokens/s 300, at least 600"),
    (MEASURED, BenchGates(max_usd_per_million_tokens=1.0), "million tokens 2, at most 1"),
    (MEASURED, BenchGates(min_acceptance_length=3.0), "acceptance length 2.5, at least 3"),
    (UNKNOWN, BenchGates(Slo(itl=1.0), None, 5.0, 1.0), "unknown, at most 1 (and 2 more)"),
])  # fmt: skip
def test_each_limit_is_a_gate(measured: BenchResult, gates: BenchGates, miss: str) -> None:
    with raises_code("gate-missed", Refused) as refused:
        require_gates(measured, gates)
    assert miss in refused.value.message


# The numbers of two variants, and what their difference says.
_MINUTES = 30
Compared = tuple[VariantResult, Minutes]


def minute(**numbers: float) -> Minute:
    made = Minute()
    made.update(numbers)
    return made


def variant(name: str, token_seconds: float, *, streams: bool = True, k: int = 0) -> Compared:
    """Thirty minutes of about 40 requests with 100 tokens each, at $6 per hour."""
    chance = random.Random(name)
    minutes = {}
    for number in range(_MINUTES):
        requests = 40 * chance.uniform(0.9, 1.1)
        tokens, first = 100 * requests, 0.1 * requests
        latency = (first + token_seconds * (tokens - requests)) * chance.uniform(0.95, 1.05)
        timed = {"first": first, "streams": requests} if streams else {}
        drafted = {"accepted": 2.0 * k * requests, "drafts": 2.0 * requests} if k else {}
        minutes[60.0 * number] = minute(
            requests=requests, latency=latency, ended=requests, tokens=tokens, **timed, **drafted
        )
    return VariantResult(name, "a/target", k, "ml.g5.xlarge", 1, 6.0), minutes


def compared(first: Compared, second: Compared) -> VariantComparison:
    return compare_variants("e", (first, second), 0.0, 60.0 * _MINUTES, 60.0)


def test_the_numbers_of_a_variant() -> None:
    first, two = compared(variant("one", 0.02, k=2), variant("two", 0.02)).variants
    assert first.requests == pytest.approx(1200, rel=0.05)
    assert first.share == pytest.approx(0.5, abs=0.03)
    assert first.ttft_seconds
    assert first.ttft_seconds.value == pytest.approx(0.1)
    assert first.itl_seconds
    assert first.itl_seconds.low < 0.02 < first.itl_seconds.high
    assert first.acceptance_length
    assert first.acceptance_length.value == pytest.approx(3.0)
    assert two.acceptance_length is None
    assert first.usd_per_million_tokens
    assert first.output_tokens
    cost = 3.0 / first.output_tokens * 1e6
    assert first.usd_per_million_tokens.value == pytest.approx(cost, rel=0.01)
    assert first.in_progress == pytest.approx(40 * 2.08 / 60, rel=0.05)


@pytest.mark.parametrize(("second", "faster"), [(0.01, "two"), (0.03, "one"), (0.0201, None)])
def test_faster_variant_is_named_where_interval_decides(second: float, faster: str | None) -> None:
    comparison = compared(variant("one", 0.02), variant("two", second))
    assert comparison.faster == faster
    change = comparison.changes["seconds_per_token"]
    assert change.low < change.value < change.high
    assert (change.low <= 0 <= change.high) == (faster is None)


def test_nothing_is_reduced_by_more_than_all_of_it() -> None:
    change = relative_change(Interval(24.5, 9.9, 39.0), Interval(8.7, 0.0, 17.9))
    assert change
    assert change.low == -1.0 < change.value < change.high


def test_what_is_unknown_or_not_comparable_is_noted() -> None:
    first, (two, minutes) = variant("one", 0.02), variant("two", 0.02)
    third = {at: made for at, made in minutes.items() if at % 180 == 0}
    single = {0.0: minutes[0.0]}
    assert any("different loads" in note for note in compared(first, (two, third)).notes)
    assert compared(first, (two, single)).changes == {}
    whole = compared(first, variant("two", 0.02, streams=False))
    assert whole.variants[1].itl_seconds is None
    assert ("itl_seconds" in whole.changes, "seconds_per_token" in whole.changes) == (False, True)
    assert any("not all requests stream" in note for note in whole.notes)


def test_tokens_of_a_proof_have_no_price() -> None:
    idle, _ = variant("idle", 0.02)
    comparison = compared(variant("one", 0.02), (idle, {0.0: minute(tokens=122.0)}))
    assert comparison.variants[1].usd_per_million_tokens is None
    assert (comparison.faster, comparison.changes) == (None, {})
    assert comparison.variants[1].seconds_per_token is None
    assert any("idle has answered 0 requests" in note for note in comparison.notes)


def test_a_variant_with_only_errors_is_named_with_their_cause() -> None:
    (two, _), (first, _) = variant("two", 0.02), variant("one", 0.02)
    broken = {60.0 * number: minute(requests=3, errors=3, failed=3) for number in range(3)}
    idle, failing = compare_variants("e", ((first, {}), (two, broken)), 0.0, 180.0, 60.0).variants
    assert (failing.errors, failing.failed) == (9, 9)
    assert (failing.only_errors, idle.only_errors) == (True, False)
    assert "5xx" in failing.cause
