"""The acceptance length at any K: from rows, else from publications, else unknown."""

import random
import statistics
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measurements import speed_rows
from measurements.speed_errors import Compared, estimated
from peagle.catalog.schema import Drafter, PublishedAcceptance, Seconds, SpeedRun
from peagle.fit.estimate import compute_fit
from peagle.speed.acceptance import (
    NO_DRAFT_ACCEPTANCE,
    curve_through,
    find_acceptance,
    position_rates,
)
from peagle.speed.estimate import MEASURED_STEP, cached_requests, on_engine
from peagle.speed.step import StepTimes, closed_load, read_geometry
from peagle.workload import Workload
from tests.support import bundled_catalog, in_process
from tests.unit.speed.cases import (
    CATALOG,
    CODER,
    MODEL,
    SHORT,
    TWENTY,
    case,
    row,
    run,
    speed,
    tokens,
)

DECAY = 0.63
HEAD = next(d for d in CATALOG.targets[TWENTY].drafters if d.name == "p-eagle")
NAMES = {HEAD.name, HEAD.weights}


def published(*lengths: tuple[str, int, float]) -> Drafter:
    """The head with these published lengths: benchmark, K and length."""
    lengths_of_domains = tuple(
        PublishedAcceptance(benchmark=name, k=k, acceptance_length=length, source="a card")
        for name, k, length in lengths
    )
    return HEAD.model_copy(update={"published": lengths_of_domains})


def test_without_a_drafter_or_k_every_step_makes_one_token() -> None:
    assert find_acceptance(None, 0, decay=DECAY) == NO_DRAFT_ACCEPTANCE
    assert find_acceptance(HEAD, 0, decay=DECAY) == NO_DRAFT_ACCEPTANCE


@pytest.mark.parametrize(("lengths", "k", "decay", "expected"), [
    ((), 3, DECAY, (1.0, "unknown")),
    ((("chat", 5, 3.1),), 5, DECAY, (3.1, "published")),
    # One length gives others by the usual decay: first = 1.4 / 1.75 = 0.8.
    ((("chat", 3, 2.4),), 5, 0.5, (2.55, "published")),
    # Only benchmarks that were published for most K are averaged.
    ((("a", 3, 2.0), ("a", 7, 3.0), ("b", 3, 3.0), ("b", 7, 4.0), ("c", 7, 8.0)), 7, DECAY,
     (3.5, "published")),
])  # fmt: skip
def test_published_lengths(
    lengths: tuple[tuple[str, int, float], ...], k: int, decay: float, expected: tuple[float, str]
) -> None:
    acceptance = find_acceptance(published(*lengths), k, decay=decay)
    assert (acceptance.length, acceptance.basis) == expected


def test_the_curve_meets_the_lengths_of_the_qwen_card() -> None:
    head = CATALOG.targets[CODER].drafters[0]
    for k, length in ((4, 4.30), (10, 6.66), (18, 7.51)):
        curve = curve_through(((4, 4.30), (10, 6.66), (18, 7.51)), DECAY)
        assert curve.length(k) == pytest.approx(length, rel=0.06)
        assert find_acceptance(head, k, decay=DECAY).length == length


def test_rows_are_preferred_and_averaged_by_their_tokens() -> None:
    rows = run(
        row(1, 400, "p-eagle", 3, acceptance_length=3.9),
        row(127, 9000, "p-eagle", 3, acceptance_length=2.8),
        row(64, 9000, "eagle3", 3, acceptance_length=2.2),
    )
    acceptance = find_acceptance(HEAD, 3, [rows], NAMES, decay=DECAY)
    assert acceptance.length == pytest.approx((3.9 + 127 * 2.8) / 128, abs=1e-3)
    assert (acceptance.basis, acceptance.source) == ("imposed", "run.json")


def test_measured_on_text_is_preferred_to_imposed() -> None:
    imposed = run(row(8, 400, "p-eagle", 3, acceptance_length=2.8))
    measured = run(
        row(8, 400, "p-eagle", 3, acceptance_length=2.1), synthetic=False, file="own.json"
    )
    acceptance = find_acceptance(HEAD, 3, [imposed, measured], NAMES, decay=DECAY)
    assert (acceptance.length, acceptance.basis, acceptance.source) == (2.1, "measured", "own.json")


def test_imposed_lengths_are_those_of_the_run_with_the_most_k() -> None:
    def imposed(day: int, *ks: int) -> SpeedRun:
        rows = (row(8, 400, "p-eagle", k, acceptance_length=1 + k / day) for k in ks)
        return run(*rows, date=date(2026, 11, day), file=f"{day}.json")

    runs = [imposed(20, 3, 5), imposed(21, 3, 7), imposed(22, 3)]
    acceptance = find_acceptance(HEAD, 3, runs, NAMES, decay=DECAY)
    assert (acceptance.source, acceptance.basis) == ("21.json", "imposed")


@given(st.integers(1, 12), st.floats(1.0, 12.0), st.integers(1, 20))
def test_a_length_grows_with_k_and_is_at_most_k_plus_one(k: int, length: float, more: int) -> None:
    curve = curve_through(((k, min(length, k + 1)),), DECAY)
    assert 0 <= curve.first <= 1
    assert 0 <= curve.decay <= 1
    assert curve.length(k) <= curve.length(k + more) <= k + more + 1


# The performance model against measured conversations, and what a cache keeps of them.
CHAT = Workload(4096, 256, 3584)
ALONE = case()


@pytest.mark.parametrize(
    ("turns", "count", "largest", "median_first", "p90_first"),
    [(False, 16, 0.16, 0.12, 0.3), (True, 38, 0.27, 0.13, 0.32)],
)
def test_every_measured_row_of_a_conversation_is_near_the_model(
    turns: bool, count: int, largest: float, median_first: float, p90_first: float
) -> None:
    """Without a correction by other rows."""
    with bundled_catalog():
        speed_rows.catalog.cache_clear()
        of = [row for row in speed_rows.rows(turns=turns) if row.cached]
        model = speed_rows.catalog().speed_model
        compared = [Compared(row, estimated(row, model, ())) for row in of]
    speed_rows.catalog.cache_clear()
    errors, first = (
        sorted(abs(error) for error in column)
        for column in ([row.error for row in compared], [row.first_error for row in compared])
    )
    assert len(errors) >= count
    assert errors[-1] <= largest
    assert errors[len(errors) * 9 // 10] <= 0.13
    assert statistics.median(errors) <= 0.08
    assert statistics.median(first) <= median_first
    assert first[len(first) * 9 // 10] <= p90_first


@given(st.integers(1, 256), st.integers(256, 8192), st.sampled_from([0, 3, 7]))
def test_a_turn_waits_for_a_part_of_the_others(load: int, cached: int, k: int) -> None:
    """To be read for at most all of them, then for one and a half steps, which have another prompt
    in them if answers end one after the other, as they do without drafts."""
    size = Workload(cached + 256, 256, cached)
    cpu = (MODEL.constants.tokenized + MODEL.constants.hashed) * size.prompt_tokens
    gpu = MODEL.gpu("H100")
    assert gpu
    times = StepTimes(read_geometry(case(drafter="p-eagle" if k else None, k=k)), gpu, MODEL)
    alone, turn = (
        closed_load(times, size, count, count, MEASURED_STEP, 1 + k / 2, at_once=False)
        for count in (1, load)
    )
    prompt = max(alone.first - cpu, turn.step)
    assert alone.first == pytest.approx(cpu + times.prefill_seconds(1, size, MEASURED_STEP)[0])
    assert alone.first * (1 - 1e-9) <= turn.first <= (load * cpu + 2.5 * prompt) * (1 + 1e-9)
    if load > 1:
        assert turn.first >= cpu + prompt + 1.5 * (turn.step if k else prompt)
    assert speed(ALONE, load, size) == speed(ALONE, load, size, at_once=False)


@pytest.mark.parametrize(("k", "length"), [(3, 2.9), (7, 3.7), (7, 5.6)])
def test_a_load_sent_at_once_ends_with_its_slowest_request(k: int, length: float) -> None:
    """As many more steps as in a simulation, in a batch of a fourth of the requests."""
    gpu = MODEL.gpu("H200")
    assert gpu
    times = StepTimes(read_geometry(case(drafter="p-eagle", k=k)), gpu, MODEL)
    rates = (1.0, *position_rates(curve_through(((k, length),), MODEL.decay), k))
    chance, more = random.Random(k), []
    for _ in range(100):
        needed = []
        for _ in range(32):
            tokens = steps = 0
            while tokens < SHORT.output_tokens:
                drawn = chance.random()
                tokens, steps = tokens + sum(drawn < rate for rate in rates), steps + 1
            needed.append(steps)
        more.append(max(needed) - statistics.mean(needed))
    load, turns = (
        closed_load(times, SHORT, 32, 32, MEASURED_STEP, length, at_once=at_once)
        for at_once in (True, False)
    )
    step = times.decode_seconds(8, SHORT.prompt_tokens + SHORT.output_tokens / 2)
    assert load.tail / step == pytest.approx(statistics.mean(more), rel=0.15)
    assert load.total - load.tail == pytest.approx(turns.total)
    assert turns.tail == 0.0
    alone = closed_load(times, SHORT, 1, 1, MEASURED_STEP, length)
    assert alone.tail == 0.0


@pytest.mark.parametrize(("captured", "requests", "basis"), [
    (None, 128, "measured"), (None, 32, "estimated"), (256, 32, "measured"),
])  # fmt: skip
@pytest.mark.parametrize("turns", [1, 3])
def test_a_row_answers_for_turns_if_both_or_neither_have_a_graph_for_a_prompt(
    captured: int | None, requests: int, basis: str, turns: int
) -> None:
    """A step of 428 tokens, with K=3: vLLM's default has 512 with 128 requests, 256 with 32."""
    of = case(CODER, "p-eagle", 3, max_num_seqs=requests)
    measured = row(
        8, 2000, drafter="p-eagle", k=3, acceptance_length=2.0, prompt_tokens=4096,
        output_tokens=256, cached_prompt_tokens=3696, turns=turns,
        max_cudagraph_capture_size=captured,
    )  # fmt: skip
    runs = [run(measured, target=CODER)]
    answer = speed(of, 8, Workload(4096, 256, 3712), length=2.0, runs=runs, names={"p-eagle"})
    assert answer.basis == basis


def test_a_row_that_was_sent_at_once_has_the_ttft_of_turns_by_the_model() -> None:
    size = Workload(4096, 256, 3584)
    at_once, turns = (speed(ALONE, 8, size, at_once=together) for together in (True, False))
    measured = row(
        8, 2000, prompt_tokens=4096, output_tokens=256, cached_prompt_tokens=3584,
        ttft_seconds=Seconds(mean=0.2, p50=0.2, p90=0.2, p99=0.2),
    )  # fmt: skip
    answer = speed(ALONE, 8, size, runs=[run(measured)])
    assert (answer.basis, answer.tokens_per_second) == ("measured", 2000)
    assert at_once.ttft_seconds
    assert turns.ttft_seconds
    ratio = turns.ttft_seconds / at_once.ttft_seconds
    assert answer.ttft_seconds == pytest.approx(0.2 * ratio)
    followed = measured.model_copy(update={"turns": 3})
    assert speed(ALONE, 8, size, runs=[run(followed)]).ttft_seconds == 0.2


def test_cached_tokens_are_not_processed() -> None:
    assert tokens(ALONE, 8, CHAT) > 1.1 * tokens(ALONE, 8, Workload(4096, 256))


def test_without_prefix_caching_nothing_is_cached() -> None:
    off = ALONE._replace(engine=ALONE.engine._replace(prefix_caching=False))
    assert on_engine(off, compute_fit(off), CHAT, 8) == Workload(4096, 256)
    assert tokens(off, 8, CHAT) == tokens(off, 8, Workload(4096, 256))


def test_a_drafter_loses_a_block_of_the_size_that_is_set() -> None:
    for size, plan in ((16, ()), (64, ("--set", "block-size=64"))):
        made = in_process("plan", "gpt-oss-20b", "--workload", "chat", *plan, "--json").document
        assert made["speculation"] is not None
        assert made["speed"]["cached_prompt_tokens"] == 3584 - size


def test_a_full_cache_keeps_a_share_of_the_hits() -> None:
    fit = compute_fit(ALONE)
    kept = cached_requests(ALONE, fit, CHAT)
    assert on_engine(ALONE, fit, CHAT, kept).cached_prompt_tokens == 3584
    half = on_engine(ALONE, fit, CHAT, 2 * kept).cached_prompt_tokens
    assert half == pytest.approx(3584 / 2, abs=1)


def test_engines_share_conversations_so_that_each_lacks_the_turns_of_the_others() -> None:
    """Of a turn with 512 new tokens and an answer of 256, the next one on another engine."""
    fit = compute_fit(ALONE)
    two = on_engine(ALONE, fit, CHAT, 1, engines=2).cached_prompt_tokens
    assert two == 3584 - 512 - 256


SHARED = replace(CHAT, shared_prompt_tokens=2048)


def test_every_prompt_and_engine_hits_what_all_share() -> None:
    fit = compute_fit(ALONE)
    many = 1000 * cached_requests(ALONE, fit, SHARED)
    assert on_engine(ALONE, fit, CHAT, many).cached_prompt_tokens < 100
    assert 2048 <= on_engine(ALONE, fit, SHARED, many).cached_prompt_tokens < 2100
    assert on_engine(ALONE, fit, SHARED, 1, engines=9).cached_prompt_tokens == 2048
