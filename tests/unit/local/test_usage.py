"""How an engine is used, from two pages of its metrics."""

import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from peagle.engine import usage
from peagle.engine.process import EngineProcess
from peagle.engine.state import LocalEngine
from peagle.engine.usage import EngineMeter, MetricsPage, quantile, usage_between, weighted_mean

PAGE = """\
vllm:request_success_total{engine="0"} 30
vllm:request_success_total{engine="1"} 30
vllm:generation_tokens_total 1200
vllm:inter_token_latency_seconds_count 100
vllm:inter_token_latency_seconds_sum 2
vllm:num_requests_running 3
vllm:num_requests_waiting NaN
vllm:kv_cache_usage_perc 0.25
vllm:time_to_first_token_seconds_bucket{le="0.1"} 5
vllm:time_to_first_token_seconds_bucket{le="0.2"} 10
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 10
vllm:spec_decode_num_drafts_total 100
vllm:spec_decode_num_draft_tokens_total 500
vllm:spec_decode_num_accepted_tokens_total 150
"""


def engine(**environment: str) -> LocalEngine:
    process = EngineProcess(1, -1, 20_000, "/no/log")
    return LocalEngine("chat", "a/b", "chat", "0.28.0", environment, (), process, started_at=1000.0)


@pytest.mark.parametrize(("buckets", "share", "value"), [
    ({}, 0.5, None),
    ({1.0: 0.0}, 0.5, None),
    ({1.0: 4.0}, 0.5, 0.5),
    ({1.0: 2.0, 2.0: 4.0}, 0.5, 1.0),
    ({1.0: 2.0, 2.0: 4.0}, 0.75, 1.5),
    ({1.0: 2.0, 2.0: 4.0}, 1.0, 2.0),
    ({1.0: 2.0, 2.0: 4.0}, 0.0, 0.0),
    ({1.0: 0.0, 2.0: 4.0}, 0.0, 0.0),
    ({2.0: 4.0, 1.0: 0.0}, 0.5, 1.5),
    ({1.0: 2.0, math.inf: 4.0}, 0.9, 1.0),
    ({1.0: 2.0, math.inf: 4.0}, 0.5, 1.0),
])  # fmt: skip
def test_a_quantile_is_interpolated_in_its_bucket(
    buckets: dict[float, float], share: float, value: float | None
) -> None:
    assert quantile(buckets, share) == value


@pytest.mark.parametrize(("pairs", "mean"), [
    ((), None), (((5, 0),), None), (((2, 1), (8, 3)), 6.5), (((2, 1), (8, 0)), 2.0),
])  # fmt: skip
def test_a_mean_has_weights(pairs: tuple[tuple[float, float], ...], mean: float | None) -> None:
    assert weighted_mean(pairs) == mean


def test_a_page_is_summed_over_engines() -> None:
    page = MetricsPage.parse(PAGE, 5.0)
    assert page.time == 5.0
    assert page.total("request_success_total") == 60
    assert page.total("num_requests_waiting") is None
    name = "vllm:time_to_first_token_seconds_bucket"
    assert [page.totals[name, bound] for bound in ("0.1", "0.2", "+Inf")] == [5, 10, 10]


@pytest.mark.parametrize("text", ["", "<html>", "a{b} 1", "a x"])
def test_another_page_has_no_samples(text: str) -> None:
    assert MetricsPage.parse(text, 0.0).totals == {}


def test_the_first_usage_is_over_the_whole_life() -> None:
    speculation = json.dumps({"num_speculative_tokens": 5})
    use = usage_between(
        engine(SM_VLLM_SPECULATIVE_CONFIG=speculation),
        MetricsPage(1000.0),
        MetricsPage.parse(PAGE, 1060.0),
    )
    assert (use.name, use.where, use.state, use.instances) == ("chat", "local", "dead", 1)
    assert (use.window_seconds, use.requests_per_minute, use.tokens_per_second) == (60, 60, 20)
    assert (use.running, use.waiting, use.kv_cache_share) == (3, None, 0.25)
    assert use.itl == 0.02
    assert use.ttft_p50 == pytest.approx(0.1)
    assert use.ttft_p90 == pytest.approx(0.18)
    assert (use.k, use.acceptance_length) == (5, 2.5)


def test_later_usage_is_the_difference_of_two_pages() -> None:
    before = MetricsPage.parse(PAGE, 1060.0)
    later = (
        PAGE.replace('{engine="1"} 30', '{engine="1"} 90')
        .replace("tokens_total 1200", "tokens_total 1500")
        .replace("drafts_total 100", "drafts_total 200")
        .replace("accepted_tokens_total 150", "accepted_tokens_total 450")
        .replace('le="0.2"} 10', 'le="0.2"} 14')
        .replace('le="+Inf"} 10', 'le="+Inf"} 14')
    )
    use = usage_between(engine(), before, MetricsPage.parse(later, 1090.0))
    assert (use.window_seconds, use.requests_per_minute, use.tokens_per_second) == (30, 120, 10)
    assert (use.itl, use.k, use.acceptance_length) == (None, None, 4.0)
    assert use.ttft_p50 == pytest.approx(0.15)


def test_a_restarted_engine_and_an_empty_page_have_no_negative_use() -> None:
    fewer = PAGE.replace("tokens_total 1200", "tokens_total 200")
    use = usage_between(engine(), MetricsPage.parse(PAGE, 5.0), MetricsPage.parse(fewer, 5.0))
    assert (use.window_seconds, use.tokens_per_second) == (1e-3, 0)
    none = usage_between(engine(), MetricsPage(0.0), MetricsPage(60.0))
    assert (none.requests_per_minute, none.tokens_per_second, none.itl) == (None, None, None)
    assert (none.ttft_p50, none.acceptance_length, none.window_seconds) == (None, None, 60)


def test_the_meter_measures_over_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((1100.0, 1150.0, 1200.0, 1260.0))
    monkeypatch.setattr(usage, "read_metrics", lambda engine: PAGE)
    monkeypatch.setattr(time, "time", lambda: next(times))
    meter = EngineMeter(engine(), window_seconds=100.0)
    windows = [meter.read().window_seconds for _ in range(4)]
    assert windows == [100, 150, 100, 110], "the oldest page that covers the window"


@pytest.mark.parametrize(
    ("config", "k"), [("{}", None), ('{"num_speculative_tokens": "5"}', None), ("[", None)]
)
def test_an_unknown_k_is_none(config: str, k: Any, tmp_path: Path) -> None:
    page = MetricsPage(0.0)
    assert usage_between(engine(SM_VLLM_SPECULATIVE_CONFIG=config), page, page).k is k
