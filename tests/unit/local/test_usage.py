"""The use of an engine of this machine, by its ``/metrics``."""

from __future__ import annotations

import pytest

from peagle.engine.process import EngineProcess
from peagle.engine.state import LocalEngine
from peagle.engine.usage import MetricsPage, quantile, usage_between
from peagle_serve.contract import SPECULATION

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 2.0
vllm:num_requests_waiting{{engine="0",model_name="m"}} 1.0
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {requests}
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} 1.0
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.1",model_name="m"}} {requests}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.5",model_name="m"}} {all}
vllm:time_to_first_token_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} {all}
vllm:inter_token_latency_seconds_sum{{engine="0",model_name="m"}} {seconds}
vllm:inter_token_latency_seconds_count{{engine="0",model_name="m"}} {tokens}
vllm:spec_decode_num_drafts_total{{engine="0",model_name="m"}} {tokens}
vllm:spec_decode_num_draft_tokens_total{{engine="0",model_name="m"}} 700.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0",model_name="m"}} {accepted}
"""
ENGINE = LocalEngine(
    name="peagle-tiny",
    pair="tiny",
    served_as="peagle/tiny",
    vllm="0.28.0",
    environment={SPECULATION: '{"method": "eagle3", "num_speculative_tokens": 7}'},
    notes=(),
    process=EngineProcess(2**22 - 1, 5, 1, ""),
    started_at=1000.0,
)


def page(at: float, **values: float) -> MetricsPage:
    return MetricsPage.parse(PAGE.format(**values), at)


FIRST = page(1060.0, tokens=100, requests=4, all=5, seconds=2, accepted=150)
SECOND = page(1120.0, tokens=400, requests=9, all=15, seconds=5, accepted=450)


def test_the_first_page_is_about_the_whole_life_of_the_engine() -> None:
    found = usage_between(ENGINE, MetricsPage(1000.0, ()), FIRST)
    assert (found.window_seconds, found.requests_per_minute) == (60.0, 5.0)
    assert (found.running, found.waiting, found.kv_cache_share) == (2, 1, 0.25)
    assert (found.k, found.acceptance_length) == (7, 2.5)
    assert found.itl == pytest.approx(0.02)
    assert found.usd_per_hour is None


def test_later_pages_are_about_the_time_between_them() -> None:
    found = usage_between(ENGINE, FIRST, SECOND)
    assert (found.window_seconds, found.requests_per_minute) == (60.0, 5.0)
    assert (found.tokens_per_second, found.acceptance_length) == (5.0, 2.0)
    assert found.itl == pytest.approx(0.01)
    assert found.ttft_p50 == pytest.approx(0.1), "5 of 10 requests took at most 0.1 s"
    assert found.ttft_p90 == pytest.approx(0.42)


def test_an_engine_that_restarted_counts_from_zero() -> None:
    found = usage_between(ENGINE, SECOND, FIRST)
    assert (found.requests_per_minute, found.tokens_per_second) == (0.0, 0.0)
    assert found.itl is None


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, float("inf"): 0.0}, 0.5, None),
        ({1.0: 10.0, float("inf"): 10.0}, 0.5, 0.5),
        ({1.0: 1.0, float("inf"): 10.0}, 0.9, 1.0),
    ],
)
def test_quantiles(buckets: dict[float, float], share: float, expected: float | None) -> None:
    assert quantile(buckets, share) == expected
