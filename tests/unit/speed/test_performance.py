"""The performance of an engine: what is measured is used, the rest follows from sizes and GPU."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.catalog.schema import Seconds, SpeedRun
from peagle.fit.estimate import FitCase
from peagle.speed.acceptance import Acceptance
from peagle.speed.estimate import performance
from peagle.workload import Workload
from tests.support import examples
from tests.unit.speed.cases import (
    CODER,
    GEMMA,
    LONG,
    MODEL,
    SHORT,
    accepted,
    case,
    row,
    run,
    speed,
    tokens,
)

ALONE = case()
P_EAGLE = case(drafter="p-eagle", k=3)
NAMES = frozenset({"p-eagle"})
LATENCY = Seconds(mean=0.01, p50=0.009, p90=0.02, p99=0.03)


def test_a_measured_row_is_the_answer() -> None:
    measured = row(8, 2000, low=1900.0, high=2000.0, ttft_seconds=LATENCY, itl_seconds=LATENCY)
    answer = speed(ALONE, 8, runs=[run(measured)])
    assert (answer.basis, answer.tokens_per_second, answer.low, answer.high) == (
        "measured", 2000, 1900.0, 2000.0
    )  # fmt: skip
    assert (answer.ttft_seconds, answer.itl_seconds) == (0.01, 0.01)
    assert answer.acceptance.basis == "none"
    assert answer.source == "run.json: H100, vLLM 0.28.0, 128 + 400 tokens, 8 requests"


@pytest.mark.parametrize(("below", "above"), [(1.0, 1.0), (0.8, 0.8), (1.0, 0.64)])
def test_between_two_measured_loads_is_the_models_curve_through_both(
    below: float, above: float
) -> None:
    rows = run(row(8, below * tokens(ALONE, 8), low=1.0), row(32, above * tokens(ALONE, 32)))
    between = speed(ALONE, 16, runs=[rows])
    assert between.basis == "measured"
    assert between.tokens_per_second == pytest.approx((below * above) ** 0.5 * tokens(ALONE, 16))


def test_on_a_gpu_without_data_the_curve_between_two_loads_is_a_power_of_the_load() -> None:
    below = row(8, 2000, low=1000.0, ttft_seconds=LATENCY)
    rows = run(below, row(32, 8000, ttft_seconds=LATENCY), gpu="RTX 1")
    unknown = ALONE._replace(engine=ALONE.engine._replace(gpu="RTX 1"))
    between = speed(unknown, 16, runs=[rows])
    assert between.tokens_per_second == pytest.approx(4000)
    assert (between.low or 0) ** 2 == pytest.approx(8e6)
    assert between.ttft_seconds == pytest.approx(0.01)


ROWS = (row(8, 2000), row(32, 8000))


@pytest.mark.parametrize(("load", "workload", "changes"), [
    (8, SHORT, {"gpu": "H200"}),
    (8, SHORT, {"vllm": "0.30.0"}),
    (8, SHORT, {"tensor_parallel_size": 2}),
    (4, SHORT, {}),
    (64, SHORT, {}),
    (8, LONG, {}),
])  # fmt: skip
def test_a_row_of_another_engine_load_or_size_is_not_the_answer(
    load: int, workload: Workload, changes: dict[str, object]
) -> None:
    assert speed(ALONE, load, workload, runs=[run(*ROWS, **changes)]).basis == "estimated"


CODER_10 = case(CODER, "p-eagle", 10, "ml.p5e.48xlarge", max_num_seqs=128)


@pytest.mark.parametrize(("engine", "measured", "basis"), [
    (None, None, "measured"),
    (1408, 1408, "measured"),
    (704, 1408, "measured"),
    (None, 1408, "estimated"),
    (1408, None, "estimated"),
    (None, 703, "measured"),
    (None, 704, "estimated"),
])  # fmt: skip
def test_a_row_answers_on_the_same_side_of_the_largest_cuda_graph(
    engine: int | None, measured: int | None, basis: str
) -> None:
    graphs: dict[str, Any] = {"max_cudagraph_capture_size": engine}
    of = CODER_10._replace(engine=CODER_10.engine._replace(**graphs))
    of_row: dict[str, Any] = {"acceptance_length": 6.7, "max_cudagraph_capture_size": measured}
    rows = run(row(64, 9000, "p-eagle", 10, **of_row), target=CODER, gpu="H200")
    assert speed(of, 64, length=6.7, runs=[rows], names=NAMES).basis == basis


@pytest.mark.parametrize(("cached", "measured", "basis"), [
    (0, 0, "measured"),
    (3584, 3584, "measured"),
    (3584, 3568, "measured"),
    (3584, 3072, "estimated"),
    (3584, 0, "estimated"),
    (0, 3584, "estimated"),
])  # fmt: skip
def test_a_row_answers_for_as_many_new_tokens(cached: int, measured: int, basis: str) -> None:
    sizes: dict[str, Any] = {
        "prompt_tokens": 4096,
        "output_tokens": 256,
        "cached_prompt_tokens": measured,
    }
    rows = run(row(8, 2000, **sizes))
    assert speed(ALONE, 8, Workload(4096, 256, cached), runs=[rows]).basis == basis


def test_a_step_beyond_the_largest_cuda_graph_takes_what_its_launch_takes() -> None:
    without = speed(CODER_10, 64, length=6.7).itl_seconds or 0
    larger = CODER_10.engine._replace(max_cudagraph_capture_size=1408)
    captured = speed(CODER_10._replace(engine=larger), 64, length=6.7).itl_seconds or 0
    assert captured < 0.7 * MODEL.constants.uncaptured < 1.2 * without


@pytest.mark.parametrize(("of", "acceptance"), [
    (P_EAGLE, Acceptance(1.0, "unknown", "no acceptance is known")),
    (ALONE._replace(engine=ALONE.engine._replace(gpu="V100")), accepted(1.0)),
    (case(GEMMA, instance="ml.g6e.2xlarge"), accepted(1.0)),
], ids=["acceptance", "GPU", "memory"])  # fmt: skip
def test_what_is_not_known_is_an_unknown_speed(of: FitCase, acceptance: Acceptance) -> None:
    unknown = performance(of, SHORT, 8, acceptance, MODEL)
    assert (unknown.basis, unknown.tokens_per_second) == ("unknown", None)


def test_another_acceptance_than_the_imposed_one_is_estimated_from_the_row() -> None:
    rows = run(row(8, 3000, "p-eagle", 3, acceptance_length=2.9))
    on_text = Acceptance(2.0, "measured", "own prompts")
    estimate = performance(P_EAGLE, SHORT, 8, on_text, MODEL, [rows], NAMES)
    assert (estimate.basis, estimate.acceptance) == ("estimated", on_text)
    assert (estimate.tokens_per_second or 0) < 0.8 * 3000
    imposed = performance(P_EAGLE, SHORT, 8, Acceptance(2.9, "imposed", ""), MODEL, [rows], NAMES)
    assert imposed.tokens_per_second == 3000


def test_a_row_near_the_case_corrects_its_estimate() -> None:
    uncorrected = tokens(ALONE, 16)
    twice = run(row(8, 2 * tokens(ALONE, 8)))
    corrected = speed(ALONE, 16, runs=[twice])
    assert 1.3 * uncorrected < (corrected.tokens_per_second or 0) < 2 * uncorrected
    assert "corrected by run.json" in corrected.source
    far = speed(ALONE, 128, LONG, runs=[twice]).tokens_per_second or 0
    assert far < 1.2 * tokens(ALONE, 128, LONG)


def test_only_rows_of_the_same_or_an_adjacent_version_correct() -> None:
    plain = speed(ALONE, 8)
    distant = speed(ALONE, 8, runs=[run(row(32, 9_000), vllm="0.10.0", own=True)])
    assert (distant.tokens_per_second, distant.source) == (plain.tokens_per_second, plain.source)
    near = speed(ALONE, 8, runs=[run(row(32, 9_000), vllm="0.27.1", synthetic=False)])
    assert near.tokens_per_second != plain.tokens_per_second
    assert near.source.endswith(", corrected by run.json (vLLM 0.27.1)")


def test_rows_of_another_drafter_do_not_correct() -> None:
    rows = run(row(8, 99_999, "eagle3", 3, acceptance_length=2.2), synthetic=False)
    estimate = speed(P_EAGLE, 8, length=2.9, runs=[rows], names=NAMES)
    assert estimate.tokens_per_second == tokens(P_EAGLE, 8, length=2.9)


def test_ranges_are_wider_with_less_evidence() -> None:
    rows = run(row(8, 2000))

    def width(instance: str, *runs: SpeedRun) -> float:
        estimate = speed(case(instance=instance), 16, runs=runs)
        return (estimate.high or 0) / (estimate.tokens_per_second or 1) - 1

    here, elsewhere = width("ml.p5.4xlarge", rows), width("ml.g6e.2xlarge", rows)
    nothing = width("ml.g6e.2xlarge")
    assert here == pytest.approx(MODEL.ranges.both)
    assert elsewhere == pytest.approx(MODEL.ranges.one)
    assert nothing == pytest.approx(MODEL.ranges.none)
    assert MODEL.ranges.both < MODEL.ranges.one <= 0.35 < MODEL.ranges.none <= 0.6


def test_more_requests_than_run_together_wait() -> None:
    few = case(max_num_seqs=16)
    assert tokens(few, 64) == pytest.approx(tokens(few, 16), rel=0.01)
    waiting, running = speed(few, 64), speed(few, 16)
    assert (waiting.ttft_seconds or 0) > 5 * (running.ttft_seconds or 0)
    assert waiting.itl_seconds == pytest.approx(running.itl_seconds, rel=0.1)


@settings(max_examples=examples(40))
@given(
    load=st.floats(1, 100),
    factor=st.floats(1, 4),
    prompt=st.integers(16, 8000),
    answer=st.integers(16, 2000),
    k=st.integers(0, 7),
)
def test_more_load_is_not_slower_and_the_range_holds_the_estimate(
    load: float, factor: float, prompt: int, answer: int, k: int
) -> None:
    """Up to the largest CUDA graph, beyond which a step, also one of prompts, may take longer.
    Where many experts need one more tile, more load can be 7 % slower."""
    of = case(drafter="p-eagle", k=k) if k else ALONE
    workload, length = Workload(prompt, answer), 1 + 0.4 * k
    estimate, more = speed(of, load, workload, length), speed(of, load * factor, workload, length)
    captured = [(requests - 1) * prompt <= 1024 for requests in (load, load * factor)]  # others'
    if load * factor * (k + 1) <= 1024 and captured[0] == captured[1]:
        assert (more.tokens_per_second or 0) >= 0.92 * (estimate.tokens_per_second or 0)
    low, high = estimate.low or 0, estimate.high or 0
    assert 0 < low < (estimate.tokens_per_second or 0) < high
    assert (estimate.ttft_seconds or 0) > 0
