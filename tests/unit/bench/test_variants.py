"""The numbers of two variants, and what their difference says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from peagle.bench.result import Interval
from peagle.bench.variants import (
    Minute,
    Variant,
    VariantComparison,
    compare_variants,
    relative_change,
)

_MINUTES = 30


def variant(name: str, token_seconds: float, *, streams: bool = True, k: int = 0) -> Variant:
    """Thirty minutes of about 40 requests with 100 tokens each, at $6 per hour."""
    chance = random.Random(name)
    minutes = {}
    for number in range(_MINUTES):
        requests = 40 * chance.uniform(0.9, 1.1)
        tokens = 100 * requests
        first = 0.1 * requests
        latency = (first + token_seconds * (tokens - requests)) * chance.uniform(0.95, 1.05)
        minutes[60.0 * number] = Minute(
            requests, 0.0, latency, requests, first if streams else 0.0,
            requests if streams else 0.0, tokens, 2.0 * k * requests, 2.0 * requests if k else 0.0,
        )  # fmt: skip
    return Variant(name, "a/target", k, "ml.g5.xlarge", 1, 6.0, minutes)


def compared(first: Variant, second: Variant) -> VariantComparison:
    return compare_variants("e", first, second, 0.0, 60.0 * _MINUTES, 60.0)


def test_the_numbers_of_a_variant() -> None:
    one, two = compared(variant("one", 0.02, k=2), variant("two", 0.02)).variants

    assert one.requests == pytest.approx(1200, rel=0.05)
    assert one.share == pytest.approx(0.5, abs=0.03)
    assert one.ttft_seconds is not None
    assert one.ttft_seconds.value == pytest.approx(0.1)
    assert one.itl_seconds is not None
    assert one.itl_seconds.low < 0.02 < one.itl_seconds.high
    assert one.acceptance_length is not None
    assert one.acceptance_length.value == pytest.approx(3.0)
    assert two.acceptance_length is None
    assert one.usd_per_million_tokens is not None
    assert one.output_tokens is not None
    assert one.usd_per_million_tokens.value == pytest.approx(
        3.0 / one.output_tokens * 1e6, rel=0.01
    )
    assert one.in_progress == pytest.approx(40 * 2.08 / 60, rel=0.05)


@pytest.mark.parametrize(("second", "faster"), [(0.01, "two"), (0.03, "one"), (0.0201, None)])
def test_the_faster_variant_is_named_where_the_interval_decides(
    second: float, faster: str | None
) -> None:
    found = compared(variant("one", 0.02), variant("two", second))

    assert found.faster == faster
    change = found.changes["seconds_per_token"]
    assert change.low < change.value < change.high
    assert (change.low <= 0 <= change.high) == (faster is None)


def test_a_cost_per_token_says_how_much_of_the_time_it_counts() -> None:
    busy, idle = variant("one", 0.02), variant("two", 0.02)
    half = {start: one for start, one in idle.minutes.items() if start < 60.0 * _MINUTES / 2}

    notes = compared(busy, replace(idle, minutes=half)).notes

    (note,) = [one for one in notes if "USD per token" in one]
    assert note.startswith("USD per token of two counts")
    assert "idle instances cost the same" in note


def test_tokens_of_a_proof_have_no_price() -> None:
    proof = Minute(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 122.0, 0.0, 0.0)
    idle = Variant("idle", "a/target", 0, "ml.g5.xlarge", 1, 6.0, {0.0: proof})

    found = compared(variant("one", 0.02), idle)

    assert found.variants[1].usd_per_million_tokens is None
    assert (found.faster, found.changes, found.variants[1].seconds_per_token) == (None, {}, None)
    assert any("idle has answered 0 requests" in note for note in found.notes)


def test_without_streams_the_time_between_tokens_is_unknown() -> None:
    found = compared(variant("one", 0.02), variant("two", 0.02, streams=False))

    assert found.variants[1].itl_seconds is None
    assert "itl_seconds" not in found.changes
    assert "seconds_per_token" in found.changes
    assert any("not all requests stream" in note for note in found.notes)


def test_unequal_loads_are_noted() -> None:
    few = variant("two", 0.02)
    third = {start: minute for start, minute in few.minutes.items() if start % 180 == 0}
    notes = compared(variant("one", 0.02), replace(few, minutes=third)).notes
    assert any("different loads" in note for note in notes)


def test_one_minute_shows_no_difference() -> None:
    one, two = variant("one", 0.02), variant("two", 0.01)
    second = replace(two, minutes={0.0: two.minutes[0.0]})

    found = compared(one, second)

    assert (found.faster, found.changes) == (None, {})
    assert any(note.startswith("two has requests in one minute only") for note in found.notes)


def test_the_error_of_a_change_has_both_errors() -> None:
    change = relative_change(Interval(10.0, 9.0, 11.0), Interval(20.0, 19.0, 21.0))

    assert change is not None
    assert change.value == pytest.approx(1.0)
    assert change.high - change.value == pytest.approx(2 * (0.1**2 + 0.05**2) ** 0.5)
    assert relative_change(None, Interval(1.0, 0.9, 1.1)) is None
    assert relative_change(Interval(2.0, 2.0, 2.0), Interval(1.0, 0.9, 1.1)) is None


def test_a_variant_with_only_errors_is_named_with_their_cause() -> None:
    minutes = {60.0 * number: Minute(requests=3, errors=3, failed=3) for number in range(3)}
    broken = Variant("two", "pair", 3, "ml.g6.xlarge", 1, 1.0, minutes)
    idle = Variant("one", "pair", 3, "ml.g6.xlarge", 1, 1.0, {})

    report = compare_variants("name", idle, broken, 0.0, 180.0, 60.0)

    assert (report.variants[1].errors, report.variants[1].failed) == (9, 9)
    assert report.variants[1].only_errors
    assert not report.variants[0].only_errors
    assert "5xx" in report.variants[1].cause
