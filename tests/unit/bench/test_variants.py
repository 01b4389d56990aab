"""The numbers of two variants, and what their difference says."""

from __future__ import annotations

import random

import pytest

from peagle.bench.result import Interval
from peagle.bench.variants import (
    Minute,
    Minutes,
    VariantComparison,
    VariantResult,
    compare_variants,
    relative_change,
)

_MINUTES = 30
Compared = tuple[VariantResult, Minutes]


def minute(**numbers: float) -> Minute:
    made = Minute()
    made.update(numbers)
    return made


def variant(name: str, token_seconds: float, *, streams: bool = True, k: int = 0) -> Compared:
    """Thirty minutes of about 40 requests with 100 tokens each, at $6 per hour."""
    chance = random.Random(name)
    minutes = {}
    for number in range(_MINUTES):
        requests = 40 * chance.uniform(0.9, 1.1)
        tokens, first = 100 * requests, 0.1 * requests
        latency = (first + token_seconds * (tokens - requests)) * chance.uniform(0.95, 1.05)
        timed = {"first": first, "streams": requests} if streams else {}
        drafted = {"accepted": 2.0 * k * requests, "drafts": 2.0 * requests} if k else {}
        minutes[60.0 * number] = minute(
            requests=requests, latency=latency, ended=requests, tokens=tokens, **timed, **drafted
        )
    return VariantResult(name, "a/target", k, "ml.g5.xlarge", 1, 6.0), minutes


def compared(first: Compared, second: Compared) -> VariantComparison:
    return compare_variants("e", (first, second), 0.0, 60.0 * _MINUTES, 60.0)


def test_the_numbers_of_a_variant() -> None:
    one, two = compared(variant("one", 0.02, k=2), variant("two", 0.02)).variants
    assert one.requests == pytest.approx(1200, rel=0.05)
    assert one.share == pytest.approx(0.5, abs=0.03)
    assert one.ttft_seconds
    assert one.ttft_seconds.value == pytest.approx(0.1)
    assert one.itl_seconds
    assert one.itl_seconds.low < 0.02 < one.itl_seconds.high
    assert one.acceptance_length
    assert one.acceptance_length.value == pytest.approx(3.0)
    assert two.acceptance_length is None
    assert one.usd_per_million_tokens
    assert one.output_tokens
    cost = 3.0 / one.output_tokens * 1e6
    assert one.usd_per_million_tokens.value == pytest.approx(cost, rel=0.01)
    assert one.in_progress == pytest.approx(40 * 2.08 / 60, rel=0.05)


@pytest.mark.parametrize(("second", "faster"), [(0.01, "two"), (0.03, "one"), (0.0201, None)])
def test_the_faster_variant_is_named_where_the_interval_decides(
    second: float, faster: str | None
) -> None:
    comparison = compared(variant("one", 0.02), variant("two", second))
    assert comparison.faster == faster
    change = comparison.changes["seconds_per_token"]
    assert change.low < change.value < change.high
    assert (change.low <= 0 <= change.high) == (faster is None)


def test_what_is_unknown_or_not_comparable_is_noted() -> None:
    one, (two, minutes) = variant("one", 0.02), variant("two", 0.02)
    half = {at: made for at, made in minutes.items() if at < 60.0 * _MINUTES / 2}
    third = {at: made for at, made in minutes.items() if at % 180 == 0}
    single = {0.0: minutes[0.0]}
    for kept, note in (
        (half, "idle instances"),
        (third, "different loads"),
        (single, "one minute"),
    ):
        assert any(note in each for each in compared(one, (two, kept)).notes)
    assert compared(one, (two, single)).changes == {}
    whole = compared(one, variant("two", 0.02, streams=False))
    assert whole.variants[1].itl_seconds is None
    assert ("itl_seconds" in whole.changes, "seconds_per_token" in whole.changes) == (False, True)
    assert any("not all requests stream" in note for note in whole.notes)


def test_tokens_of_a_proof_have_no_price() -> None:
    idle, _ = variant("idle", 0.02)
    comparison = compared(variant("one", 0.02), (idle, {0.0: minute(tokens=122.0)}))
    assert comparison.variants[1].usd_per_million_tokens is None
    assert (comparison.faster, comparison.changes) == (None, {})
    assert comparison.variants[1].seconds_per_token is None
    assert any("idle has answered 0 requests" in note for note in comparison.notes)


def test_the_error_of_a_change_has_both_errors() -> None:
    change = relative_change(Interval(10.0, 9.0, 11.0), Interval(20.0, 19.0, 21.0))
    assert change
    assert change.value == pytest.approx(1.0)
    assert change.high - change.value == pytest.approx(2 * (0.1**2 + 0.05**2) ** 0.5)
    assert relative_change(None, Interval(1.0, 0.9, 1.1)) is None
    assert relative_change(Interval(2.0, 2.0, 2.0), Interval(1.0, 0.9, 1.1)) is None


def test_a_variant_with_only_errors_is_named_with_their_cause() -> None:
    (two, _), (one, _) = variant("two", 0.02), variant("one", 0.02)
    broken = {60.0 * number: minute(requests=3, errors=3, failed=3) for number in range(3)}
    idle, failing = compare_variants("e", ((one, {}), (two, broken)), 0.0, 180.0, 60.0).variants
    assert (failing.errors, failing.failed) == (9, 9)
    assert (failing.only_errors, idle.only_errors) == (True, False)
    assert "5xx" in failing.cause
