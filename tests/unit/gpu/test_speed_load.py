"""What a load sends to the engine, what it counts, and how repetitions become a row."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

from measurements.gpu import geometry, load, speed
from measurements.gpu.load import Workload

WORKLOAD = Workload("short-prompt", 16, 6, (2,), repetitions=(2, 4))


class Engine:
    """Answers every request with outputs of two tokens; the clock advances 1 s per step."""

    def __init__(self, clock: list[float]) -> None:
        self.clock, self.drafts = clock, 0
        self.prompts: list[int] = []
        self.left: dict[str, int] = {}

    def add_request(self, name: str, prompt: Any, parameters: Any) -> None:
        self.prompts.append(len(prompt["prompt_token_ids"]))
        self.left[name] = parameters.max_tokens

    def has_unfinished_requests(self) -> bool:
        return bool(self.left)

    def step(self) -> list[Any]:
        self.clock[0] += 1
        outputs = []
        for name in list(self.left):
            self.left[name] -= 2
            self.drafts += 1
            tokens = types.SimpleNamespace(token_ids=[5, 6])
            outputs.append(types.SimpleNamespace(request_id=name, outputs=[tokens]))
            if not self.left[name]:
                del self.left[name]
        return outputs


class Llm:
    def __init__(self, engine: Engine) -> None:
        self.llm_engine = engine

    def get_metrics(self) -> Iterator[Any]:
        for name in ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"):
            yield types.SimpleNamespace(name=name, value=self.llm_engine.drafts)
        yield types.SimpleNamespace(name="vllm:other", values=[1])


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Llm:
    """An engine on a clock of its own, without vLLM."""
    clock = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    kinds = types.SimpleNamespace(DELTA="delta")
    modules = {
        "vllm": types.SimpleNamespace(SamplingParams=types.SimpleNamespace),
        "vllm.sampling_params": types.SimpleNamespace(RequestOutputKind=kinds),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Llm(Engine(clock))


def test_a_row_is_the_fastest_repetition_and_has_all_of_them(llm: Llm) -> None:
    row = load.measure(llm, WORKLOAD, 2)
    assert llm.llm_engine.prompts == [16] * 6, "one repetition that is not counted, then two"
    assert row["not_counted"] == 4.0
    assert (row["output_tokens_per_second"], row["low"], row["high"]) == (4.0, 4.0, 4.0)
    assert (row["repetitions"], row["acceptance_length"]) == (2, 2.0)
    assert row["ttft_seconds"] == {"mean": 1, "p50": 1, "p90": 1, "p99": 1}
    assert row["itl_seconds"]["p99"] == 1
    assert row["tpot_seconds"]["p50"] == 0.5
    assert [one["drafts"] for one in row["tries"]] == [6, 6]


@pytest.mark.parametrize(
    ("speeds", "count"), [([100, 98], 2), ([100, 60, 99, 98], 4), ([100, 90, 100, 100, 100], 4)]
)
def test_repetitions_end_with_a_narrow_interval_or_at_the_maximum(
    speeds: list[float], count: int
) -> None:
    given = iter(speeds)
    tries = load.repeated(lambda: {"output_tokens_per_second": next(given)}, WORKLOAD)
    assert len(tries) == count


def test_one_output_has_no_time_between_outputs() -> None:
    times = load.request_times({"a": 1.0}, {"a": [(1.5, 0), (2.0, 1)]})
    assert times == {"ttft_seconds": [1.0], "itl_seconds": [], "tpot_seconds": []}
    assert load.percentiles([]) == {}
    assert load.percentiles([1.0, 2.0])["p50"] == 1.5


def test_imposed_rates_give_the_published_acceptance_lengths() -> None:
    def length(pair: str, drafter: str, k: int) -> float:
        return round(1 + sum(speed.rates(pair, drafter, k)), 2)

    assert [length("gpt-oss-20b", "p-eagle", k) for k in (3, 7)] == [2.87, 3.38]
    assert length("gpt-oss-20b", "eagle3", 3) == 2.24
    assert length("qwen3-coder-30b", "p-eagle", 10) == pytest.approx(6.66, abs=0.02)
    assert length("qwen3-coder-30b", "p-eagle", 4) == pytest.approx(4.30, abs=0.08)
    assert length("gpt-oss-120b", "p-eagle", 5) == pytest.approx(3.13, abs=0.01)
    assert length("gemma-4-31b", "eagle3", 5) == pytest.approx(2.95, abs=0.02)


def test_a_list_of_settings() -> None:
    none, head = speed.settings("gpt-oss-20b", "none,p-eagle:5")
    assert (none.drafter, none.k) == (None, 0)
    assert (head.drafter, head.k, head.max_num_batched_tokens) == ("p-eagle", 5, 8192)
    (adaptive,) = speed.settings("gpt-oss-20b", "eagle3-adaptive:5")
    eagle3 = geometry.Setting("gpt-oss-20b", "eagle3", 5)
    assert geometry.speculation(adaptive) == {
        **(geometry.speculation(eagle3) or {}),
        "enable_adaptive_verification": True,
    }
    assert adaptive.own() == eagle3.own()
    (graphs,) = speed.settings("gpt-oss-20b", "p-eagle:16:2176")
    assert geometry.engine_arguments(graphs)["max_cudagraph_capture_size"] == 2176
    for wrong in ("p-eagle", "none:3", "p-eagle:x", "mtp:3", "p-eagle:3:1:1"):
        with pytest.raises(ValueError, match=r"p-eagle:3|published"):
            speed.settings("gpt-oss-20b", wrong)


def test_a_later_turn_repeats_prompt_and_answer_and_only_later_turns_count(llm: Llm) -> None:
    talk = Workload("conversation", 16, 6, (2,), turns=3, added_tokens=4)
    repetition = load.converse(llm, 2, talk)
    assert llm.llm_engine.prompts == [16, 16, 26, 26, 36, 36]
    assert [len(answer) for answer in repetition.answers] == [6] * 4
    assert repetition.seconds == 6
