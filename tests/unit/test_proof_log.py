"""Proof from vLLM's lines of statistics, by log stream."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine_log import (
    EngineLoad,
    counters_in_log,
    generated_in_log,
    hit_rate_in_log,
    load_in_log,
)
from peagle.errors import NotProved
from peagle.proof import Counted, Proof, StreamCounts, evaluate, require_passed
from peagle.protocol import Counters
from tests.support import raises_code

STATISTICS = (
    "SpecDecoding metrics: Mean acceptance length: 2.51, Accepted throughput: 12.67 tokens/s, "
    "Drafted throughput: 41.95 tokens/s, Accepted: 151 tokens, Drafted: 500 tokens, Per-position "
    "acceptance rate: 0.730, 0.420, 0.210, 0.100, 0.050, Avg Draft acceptance rate: 30.2%"
)
"""A line of vLLM 0.28.0: 100 drafts with K=5."""
GENERATED = (
    "Engine 000: Avg prompt throughput: 14.2 tokens/s, Avg generation throughput: 25.1 tokens/s, "
    "Running: 0 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.0%, Prefix cache hit rate: 0.0%"
)
COUNTED = Counters(100, 500, 151, (73, 42, 21, 10, 5))
ONE, TWO = "AllTraffic/i-0001", "AllTraffic/i-0002"


def ours(message: str) -> str:
    """The line as the toolkit's own container writes it."""
    return json.dumps(
        {
            "time": "2026-11-22T08:38:19.131Z",
            "level": "INFO",
            "stage": "serving",
            "message": message,
            "from": "engine",
            "process": "APIServer pid=12",
            "place": "metrics.py:101",
        }
    )


def drafts(length: str, accepted: int, drafted: int, positions: str) -> str:
    """The line of statistics with these numbers."""
    return (
        f"SpecDecoding metrics: Mean acceptance length: {length}, Accepted throughput: 0.40 "
        f"tokens/s, Drafted throughput: 3.00 tokens/s, Accepted: {accepted} tokens, Drafted: "
        f"{drafted} tokens, Per-position acceptance rate: {positions}, Avg Draft acceptance rate: 1"
    )


POSITIONS = "Per-position acceptance rate: 0.730, 0.420, 0.210, 0.100, 0.050, "
LINES = {
    "bare": (STATISTICS, COUNTED),
    "of a process": (f"(APIServer pid=7) INFO 11-22 08:38:19 [m.py:1] {STATISTICS}", COUNTED),
    "carriage return": (f"INFO 11-22 08:38:19 [metrics.py:101] {STATISTICS}\r", COUNTED),
    "of our container": (ours(STATISTICS), COUNTED),
    "no positions": (STATISTICS.replace(POSITIONS, ""), Counters(100, 500, 151, ())),
    "nothing accepted": (drafts("1.00", 0, 21, "0.0, 0.0, 0.0"), Counters(7, 21, 0, (0, 0, 0))),
    "short n-gram": (drafts("1.40", 8, 46, "0.25, 0.15, 0.0"), Counters(20, 46, 8, (5, 3, 0))),
    "nothing drafted": (drafts("1.00", 0, 0, "0.000"), Counters(0, 0, 0, (0,))),
    "empty": ("", None),
    "another": (GENERATED, None),
    "truncated": (STATISTICS[:60], None),
    "not all": (STATISTICS.replace("Drafted: 500 tokens, ", ""), None),
    "of diffusion": ("DiffusionDecoding metrics: Committed: 12", None),
    "without its name": (STATISTICS.removeprefix("SpecDecoding metrics: "), None),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_line_of_statistics_has_its_counts_and_others_have_none(name: str) -> None:
    line, counted = LINES[name]
    assert counters_in_log(line) == counted


@pytest.mark.parametrize("escape", ["\x1b", "#033", "^[", "\\x1b", "\ufffd"])
def test_colours_change_no_number(escape: str) -> None:
    """As CloudWatch and terminals write vLLM's coloured lines."""

    def coloured(line: str) -> str:
        numbers = re.sub(r"(?<= )(\d+\.\d+)", r"{}[1m\1{}[0m", line)
        return f"{{}}[32mINFO{{}}[0m {numbers}".replace("{}", escape)

    load = "Avg generation throughput: 90.5 tokens/s, Running: 3 reqs, Waiting: 1 reqs, GPU KV "
    load += "cache usage: 12.5%, Prefix cache hit rate: 64.0%"
    assert counters_in_log(coloured(STATISTICS)) == COUNTED
    assert load_in_log(coloured(load)) == EngineLoad(90.5, 3, 1, 0.125)
    assert hit_rate_in_log(coloured(load)) == 0.64


@given(
    drafts=st.integers(1, 20_000), accepted=st.lists(st.integers(0, 20_000), min_size=1, max_size=9)
)
def test_what_vllm_rounds_gives_the_counts_back(drafts: int, accepted: list[int]) -> None:
    positions = sorted((min(count, drafts) for count in accepted), reverse=True)
    total, drafted = sum(positions), drafts * len(positions)
    rates = ", ".join(f"{count / drafts:.3f}" for count in positions)
    line = (
        f"SpecDecoding metrics: Mean acceptance length: {1 + total / drafts:.2f}, Accepted "
        f"throughput: {total / 10:.2f} tokens/s, Drafted throughput: {drafted / 10:.2f} tokens/s, "
        f"Accepted: {total} tokens, Drafted: {drafted} tokens, Per-position acceptance rate: "
        f"{rates}, Avg Draft acceptance rate: {100 * total / drafted:.1f}%"
    )
    counters = counters_in_log(line)
    assert counters is not None
    assert (counters.drafts, counters.draft_tokens, counters.accepted_tokens) == (
        drafts,
        drafted,
        total,
    )
    errors = [abs(a - b) for a, b in zip(counters.accepted_per_position, positions, strict=True)]
    assert max(errors) <= max(1, drafts / 1000)


def test_a_report_says_whether_the_engine_was_idle() -> None:
    assert generated_in_log(ours(GENERATED)) == 25.1
    assert generated_in_log(GENERATED.replace("25.1", "0.0")) == 0.0
    assert generated_in_log(STATISTICS) is None


def counts_of(*lines: tuple[str, str]) -> StreamCounts:
    """What the streams' lines count."""
    counts = StreamCounts()
    for stream, line in lines:
        counts.add(stream, line)
    return counts


def test_statistics_are_complete_once_every_instance_has_reported() -> None:
    counts = StreamCounts()
    counts.add(ONE, GENERATED, 20.0)
    counts.add(TWO, GENERATED.replace("25.1", "0.0"), 11.0)
    reported = [counts.has_reported(*since) for since in ((10.0, 2), (11.0, 2), (10.0, 3))]
    assert reported == [True, False, False]


def test_lines_are_summed_by_instance() -> None:
    ones = [(ONE, line) for line in (GENERATED, STATISTICS, "other", ours(STATISTICS))]
    counts = counts_of(*ones, (f"{TWO}/data-log", STATISTICS))
    assert counts.counted == {ONE: COUNTED + COUNTED, TWO: COUNTED}
    assert counts.silent == ()


def test_an_instance_that_generates_and_never_drafts_is_silent() -> None:
    first = (ONE, GENERATED)
    assert not counts_of(first).silent, "its statistics may follow"
    others = [(TWO, line) for line in (GENERATED, STATISTICS, GENERATED)]
    assert counts_of(first, first, *others).silent == (ONE,)


def proof(counted: dict[str, Counters], instances: int = 2, floor: float | None = 2.0) -> Proof:
    streams = {stream: Counted(counters) for stream, counters in counted.items()}
    return evaluate(streams, floor, 100, instances, "log")


def test_every_instance_passes_by_its_own_stream() -> None:
    result = proof({ONE: COUNTED, TWO: COUNTED + COUNTED})
    require_passed(result)
    assert (result.source, result.drafts, result.instance_count) == ("log", 300, 2)
    assert result.acceptance_length == pytest.approx(2.51)
    assert [
        (instance.stream, instance.drafts, instance.passed) for instance in result.instances
    ] == [(ONE, 100, True), (TWO, 200, True)]
    assert result.instances[0].acceptance_per_position[0] == pytest.approx(0.73)


def test_an_instance_that_has_ended_needs_no_drafts() -> None:
    result = proof({ONE: COUNTED, TWO: Counters(3, 15, 3)}, instances=1)
    assert result.passed
    assert [instance.stream for instance in result.instances] == [ONE]


@pytest.mark.parametrize(("counted", "code", "text"), [
    ({ONE: COUNTED, TWO: Counters(0, 0, 0)}, "drafts-nothing",
     f"{TWO} responds but drafts nothing"),
    ({ONE: COUNTED}, "too-few-drafts", "1 of 2 engines"),
    ({ONE: COUNTED, TWO: Counters(99, 495, 200)}, "too-few-drafts", "1 of 2 engines"),
    ({ONE: COUNTED, TWO: Counters(150, 750, 75)}, "not-proved",
     f"acceptance length 1.50 of {TWO} over 150 drafts is below the floor of 2.00"),
    ({}, "no-statistics", "no line of vLLM's statistics"),
], ids=["silent", "missing", "few drafts", "below the floor", "no statistics"])  # fmt: skip
def test_one_instance_fails_the_proof(counted: dict[str, Counters], code: str, text: str) -> None:
    result = proof(counted)
    assert not result.passed
    with raises_code(code, NotProved) as failed:
        require_passed(result, "a/b+c", "mine")
    assert text in failed.value.message
    assert failed.value.fix


def test_counters_after_a_restart_are_counted_from_zero() -> None:
    before, after = Counters(500, 2500, 900, (500, 400)), Counters(30, 150, 45, (30, 15))
    assert after.since(before) == after
