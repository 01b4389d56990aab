"""Metric filters: patterns of CloudWatch Logs on the lines of vLLM."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.sandbox.log_metrics import InvalidPattern, compiled, publish_matches
from peagle.sandbox.metrics import STORE, Metric

SPECULATION = (
    "(APIServer pid=7) INFO 11-22 19:12:56 [metrics.py:101] SpecDecoding metrics: Mean acceptance "
    "length: 2.10, Accepted throughput: 1.00 tokens/s, Drafted throughput: 3.00 tokens/s, "
    "Accepted: 11 tokens, Drafted: 30 tokens, Per-position acceptance rate: 0.700, 0.300, 0.100, "
    "Avg Draft acceptance rate: 36.7%"
)
THROUGHPUT = (
    "(APIServer pid=7) INFO 11-22 19:12:56 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 "
    "tokens/s, Avg generation throughput: 23.5 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV "
    "cache usage: 1.5%, Prefix cache hit rate: 0.0%"
)
ENDING = "[..., a=Accepted:, accepted, t=tokens*, d=Drafted:, drafted, t2=tokens*, p=Per-position, "
COUNTS = ENDING + "w1, w2, r1, r2, r3, w3=Avg, w4, w5, w6, rate]"


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("", True),
        ('"SpecDecoding metrics:"', True),
        ("SpecDecoding Engine", False),
        ('?Engine ?"Drafted: 30"', True),
        ('SpecDecoding -"Accepted: 11"', False),
        (COUNTS, True),
        (COUNTS.replace("r3, ", ""), False),
        (COUNTS.replace("drafted,", "drafted>29,"), True),
        (COUNTS.replace("drafted,", "drafted>30,"), False),
        (COUNTS.replace("Avg", "Average"), False),
        ("[one, two]", False),
        ('{$.message = "*"}', False),
    ],
)
def test_patterns(pattern: str, matches: bool) -> None:
    assert (compiled(pattern)(SPECULATION) is not None) is matches


def test_fields_of_a_line_have_values() -> None:
    found = compiled(COUNTS)(SPECULATION)
    assert found is not None
    assert (found["$accepted"], found["$drafted"]) == ("11", "30")


def test_members_of_a_json_line_have_values() -> None:
    line = '{"level": "INFO", "counts": {"accepted": 11}, "message": "SpecDecoding metrics: a"}'
    for pattern in ('{ $.message = "SpecDecoding*" }', "{$.counts.accepted > 10}",
                    '{ ($.counts.accepted EXISTS) && ($.level != "WARN") }'):  # fmt: skip
        found = compiled(pattern)(line)
        assert found is not None
        assert found["$.counts.accepted"] == "11"
    assert compiled("{$.counts.drafted EXISTS}")(line) is None


@pytest.mark.parametrize(
    "pattern", ["[a, b", "{$.a = 1", "[..., a, ...]", "{ a }", "[a b]", "Accepted:"]
)
def test_what_aws_refuses_is_invalid(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        compiled(pattern)


def publish(pattern: str, value: str, *lines: str) -> list[float]:
    STORE.clear()
    transformation: dict[str, Any] = {
        "metricName": "M",
        "metricNamespace": "N",
        "metricValue": value,
    }
    one = {"filterPattern": pattern, "metricTransformations": [transformation]}
    events = [{"timestamp": 1000, "message": line} for line in lines]
    publish_matches("us-east-1", [one], events)
    return [point.total for point in STORE.points(Metric("us-east-1", "N", "M"), 0, 10)]


def test_matching_lines_publish_their_values() -> None:
    assert publish(COUNTS, "$accepted", SPECULATION, THROUGHPUT, SPECULATION) == [11, 11]
    assert publish('"SpecDecoding"', "1", SPECULATION, THROUGHPUT) == [1]


def test_text_that_is_no_number_publishes_nothing() -> None:
    pattern = "[..., g=GPU, k=KV, c=cache, u=usage:, usage, p=Prefix, c2, h, r, rate]"
    assert compiled(pattern)(THROUGHPUT) is not None
    assert publish(pattern, "$usage", THROUGHPUT) == []
