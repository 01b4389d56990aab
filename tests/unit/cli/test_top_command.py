"""``peagle top``: a deployment on AWS, whatever may be read of it."""

from __future__ import annotations

import pytest

from peagle.aws.errors import AccessDenied
from tests.unit.aws.cloud import START, service_error
from tests.unit.cli.commands import NAME, Terminal

LOAD = (
    "INFO 11-22 08:00:10 [loggers.py:271] Engine 000: Avg prompt throughput: 9.1 tokens/s, Avg "
    "generation throughput: {} tokens/s, Running: {} reqs, Waiting: 1 reqs, GPU KV cache usage: "
    "{}%, Prefix cache hit rate: 0.0%"
)
SPECULATION = (
    "INFO 11-22 08:00:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {}, "
    "Accepted throughput: 1.00 tokens/s, Drafted throughput: 5.00 tokens/s, Accepted: {} tokens, "
    "Drafted: {} tokens, Per-position acceptance rate: 0.5, 0.2, 0.1, 0.1, 0.1"
)


@pytest.fixture
def busy(deployed: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A deployment with two instances' lines in its log, and CloudWatch's metrics."""
    cloud = deployed.cloud
    cloud.log.clear()
    cloud.now = START + 600
    monkeypatch.setattr("time.time", lambda: cloud.now)
    cloud.metrics = {
        ("Invocations", "Sum"): 30.0,
        ("Invocation5XXErrors", "Sum"): 3.0,
        ("FirstChunkLatency", "p50"): 52_000.0,
        ("FirstChunkLatency", "p90"): 131_000.0,
        ("FirstChunkLatency", "SampleCount"): 30.0,
    }
    for stream in ("AllTraffic/i-1", "AllTraffic/i-2"):
        cloud.write_log(LOAD.format("300.0", 3, "20.0"), stream)
        cloud.write_log(SPECULATION.format("2.00", 100, 500), stream)
    return deployed


@pytest.mark.thorough
def test_the_document_has_the_same_numbers_in_si_units(busy: Terminal) -> None:
    found = busy.run("top", NAME, "--json").document
    assert found["ttft_p90"] == pytest.approx(0.131)
    assert found["itl"] == pytest.approx(0.01)
    assert found["kv_cache_share"] == pytest.approx(0.2)
    assert (found["where"], found["error_share"], found["acceptance_length"]) == ("aws", 0.1, 2.0)
    price = found["usd_per_hour"] / 3600 / found["tokens_per_second"] * 1e6
    assert found["usd_per_million_tokens"] == pytest.approx(price)
    assert found["at"].startswith("2027-01-15T")


@pytest.mark.thorough
def test_nothing_is_known_of_an_endpoint_without_requests(busy: Terminal) -> None:
    busy.cloud.log.clear()
    busy.cloud.metrics = {}
    done = busy.succeeds("top", NAME, "--once")
    assert "requests    -" in done.out
    assert "the endpoint has no log yet" in done.out


@pytest.mark.thorough
def test_the_log_of_an_earlier_endpoint_of_that_name_is_not_read(busy: Terminal) -> None:
    cloud = busy.cloud
    (endpoint,) = cloud.endpoints.values()
    endpoint.created = START + 599.5  # after the lines of the earlier one
    cloud.log[-1]["timestamp"] = int((START + 590) * 1000)
    for event in cloud.log:
        event["timestamp"] = int((START + 590) * 1000)
    cloud.now = START + 640
    found = busy.run("top", NAME, "--json", "--window", "10m").document
    assert found["acceptance_length"] is None
    assert found["window_seconds"] == pytest.approx(40.5)


def test_what_may_not_be_read_is_named(busy: Terminal) -> None:
    def refuse(operation: str) -> None:
        if operation in ("get_metric_data", "filter_log_events"):
            raise service_error("AccessDeniedException", "not authorized to perform: x", operation)

    busy.cloud.before = refuse
    done = busy.succeeds("top", NAME, "--once")
    assert "requests and TTFT are unknown" in done.out
    assert "ITL, KV cache, acceptance and tokens are unknown" in done.out
    assert AccessDenied.exit_code == 4
