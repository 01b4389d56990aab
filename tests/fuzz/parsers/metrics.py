"""What engines report of their load."""

from __future__ import annotations

from peagle.deploy.usage import LogStatistics
from peagle.engine.usage import MetricsPage, quantile
from tests.fuzz.parser import Parser

LOAD_LINE = (
    "(APIServer pid=7) INFO 11-22 19:12:56 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 "
    "tokens/s, Avg generation throughput: 23.5 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV "
    "cache usage: 1.5%, Prefix cache hit rate: 0.0%"
)
PAGE = (
    'vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5"} 3.0\n'
    'vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf"} 4.0\n'
    "vllm:num_requests_running 2.0\n"
)


def _load(line: str) -> None:
    statistics = LogStatistics()
    statistics.add("AllTraffic/i-1", 5.0, line)
    statistics.tokens_per_second(300.0, 10.0)
    assert statistics.itl is None or statistics.itl >= 0


def _page(text: str) -> None:
    page = MetricsPage.parse(text, 5.0)
    page.total("vllm:num_requests_running")
    quantile(page.buckets("vllm:time_to_first_token_seconds"), 0.9)


PARSERS = (
    Parser("engine-load", _load, [LOAD_LINE]),
    Parser("metrics-page", _page, [PAGE]),
)
