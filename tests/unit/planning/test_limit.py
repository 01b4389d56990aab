"""``--ttl`` and ``--budget`` of a plan: when it ends, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.planning import Options, Plan, make_plan
from peagle.planning.operation import end_time, ends_after, limit_text
from peagle.planning.plan import Limit
from peagle.render.requests import plan_arguments, requests
from peagle.text import exact_duration
from tests.unit.rendering.plans import CATALOG

HOUR = 3600


def planned(**options: Any) -> Plan:
    return make_plan(Options(pair="tiny", **options), CATALOG)


@pytest.mark.parametrize(
    ("ttl", "budget", "end"),
    [
        (8 * HOUR, None, 108 * HOUR),
        (None, 20.0, 110 * HOUR),  # 10 hours at $2
        (8 * HOUR, 20.0, 108 * HOUR),
        (8 * HOUR, 10.0, 105 * HOUR),
    ],
)
def test_the_earlier_end_counts(ttl: int | None, budget: float | None, end: float) -> None:
    limit = Limit(ttl_seconds=ttl, budget_usd=budget)
    assert end_time(limit, 2.0, now=100.0 * HOUR) == end


def test_a_plan_says_how_long_it_lasts_and_why() -> None:
    plan = planned(ttl=8 * HOUR, budget=5.0)
    (reason,) = [one for one in plan.reasons if one.what == "limit"]
    assert plan.limit == Limit(ttl_seconds=8 * HOUR, budget_usd=5.0)
    assert plan.price_per_hour_usd is not None
    lasts = limit_text(plan.limit, plan.price_per_hour_usd)
    assert reason.value == lasts
    assert lasts.endswith("at most $5.00")
    assert reason.because.startswith("the earlier of --ttl and --budget: $5.00 at $")


def test_the_end_is_no_part_of_the_requests() -> None:
    assert requests(planned(ttl=8 * HOUR)) == requests(planned())


@pytest.mark.thorough
def test_a_budget_needs_a_price() -> None:
    without = replace(
        CATALOG,
        instances=CATALOG.instances.model_copy(
            update={
                "instances": tuple(
                    one.model_copy(update={"prices": ()}) for one in CATALOG.instances.instances
                )
            }
        ),
    )
    found = make_plan(Options(pair="tiny", budget=200.0), without).findings
    (finding,) = [one for one in found if one.code == "budget-without-price"]
    assert finding.level == "error"
    assert "--ttl" in finding.fix


def test_an_end_before_the_endpoint_may_have_started_is_a_warning() -> None:
    codes = [finding.code for finding in planned(ttl=120).findings]
    assert "limit-before-start" in codes
    assert "limit-before-start" not in [finding.code for finding in planned(ttl=8 * HOUR).findings]


def test_copies_end_as_their_endpoint_does() -> None:
    made = planned(budget=200.0, instance_type="ml.g6.12xlarge", copies=4)
    alone = planned(budget=200.0, instance_type="ml.g6.12xlarge")
    assert made.copies is not None
    assert made.limit == alone.limit
    (reason,) = [one for one in made.reasons if one.what == "limit"]
    assert reason.because.endswith("; the copies are deleted 10 minutes before")
    assert ends_after(made) == ends_after(alone)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ttl": 28800}, ["--ttl", "8h"]),
        ({"ttl": 90, "budget": 12.5}, ["--ttl", "90s", "--budget", "12.5"]),
        ({"no_limit": True}, ["--no-limit"]),
        ({}, []),
    ],
)
def test_the_arguments_set_the_same_limit(options: dict[str, Any], words: list[str]) -> None:
    plan = planned(**options)
    others = plan_arguments(planned())
    assert [word for word in plan_arguments(plan) if word not in others] == words


@pytest.mark.parametrize(("seconds", "text"), [(7200, "2h"), (5400, "90m"), (3661, "3661s")])
def test_a_duration_is_exact(seconds: int, text: str) -> None:
    assert exact_duration(seconds) == text
