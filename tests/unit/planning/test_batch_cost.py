"""A batch is planned by its total cost, start included: nothing that the plan shows is
cheaper by more than 3 %; of equal costs, the soonest end is chosen."""

from __future__ import annotations

import pytest

from peagle.catalog import load_catalog
from peagle.options import Options
from peagle.planning.planner import make_plan

CATALOG = load_catalog()


@pytest.mark.thorough
@pytest.mark.parametrize("pair", ["gpt-oss-20b", "qwen3-coder-30b"])
@pytest.mark.parametrize(
    ("requests", "hours"), [(100, 8), (10_000, 8), (50_000, 8), (10_000, 1), (1_000_000, 8)]
)
def test_nothing_that_is_shown_is_cheaper_in_time(pair: str, requests: int, hours: int) -> None:
    plan = make_plan(Options(pair=pair, requests=requests, within=hours * 3600), CATALOG)
    assert plan.batch is not None
    assert plan.batch.usd is not None
    assert plan.batch.seconds is not None
    assert plan.batch.seconds <= hours * 3600
    assert plan.concurrency <= requests
    rows = [*plan.alternatives, *filter(None, [plan.without_speculation])]
    cheaper = [
        row.batch
        for row in rows
        if row.batch and row.batch.usd and row.verified and row.batch.usd * 1.03 < plan.batch.usd
    ]
    assert cheaper == []


def test_the_start_of_a_batch_is_that_of_scaling() -> None:
    options = Options(pair="gpt-oss-20b", requests=1000, concurrency=8)
    plan = make_plan(options, CATALOG)
    scaled = make_plan(options.model_copy(update={"scale_to_zero": True}), CATALOG)
    minutes = next(r.value for r in scaled.reasons if r.what == "start_time")
    assert plan.batch is not None
    assert minutes == f"about {plan.batch.start_seconds // 60} min"
