"""Extra instances of a deployment, and what everything costs then."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.aws.sagemaker import Endpoint
from peagle.deploy.extra_instances import during_update
from peagle.deploy.limits import extra_usd_in
from peagle.deploy.state import Deployment, PriceHistory
from tests.unit.aws.plans import a_plan, a_revision

PRICE = a_plan().price_per_hour_usd


@pytest.mark.parametrize(
    ("before", "after", "total"),
    [(PRICE, PRICE, 2.816), (None, PRICE, None), (PRICE, None, None)],
)
def test_the_price_during_an_update_is_unknown_where_one_of_both_plans_has_none(
    before: float | None, after: float | None, total: float | None
) -> None:
    serving = a_revision(a_plan(price_per_hour_usd=before))
    update = a_revision(a_plan(price_per_hour_usd=after), fingerprint="1b2c3d4e")
    record = Deployment(
        name="peagle-pair", scope="1", account="1", region="us-east-1", serving=serving,
        pending=update,
    )  # fmt: skip

    assert during_update(record, update, live(serving.name), 1, False).usd_per_hour == total


def live(revision: str, **changes: Any) -> Endpoint:
    return Endpoint(
        name="peagle-pair", arn="arn", status="InService", revision=revision, failure=None,
        created=0.0, changed=0.0, running={"AllTraffic": 1}, **changes,
    )  # fmt: skip


def test_before_anything_ran_nothing_was_paid() -> None:
    assert PriceHistory().cost(until=100.0) == 0.0


def test_the_cost_of_extra_instances_in_an_earlier_record_is_read() -> None:
    period = {"since": 1.0, "usd_per_hour": 3.0, "besides_usd_per_hour": 2.0}
    earlier = {"periods": [period], "besides_usd": 5.0}

    history = PriceHistory.model_validate_json(json.dumps(earlier))

    assert history.extra_usd_by(3601.0) == 7.0
    assert PriceHistory.model_validate_json(history.model_dump_json()) == history


def test_the_cost_of_extra_instances_in_an_earlier_tag_is_read() -> None:
    assert extra_usd_in({"peagle:budget-besides": "1.5"}) == 1.5
    assert extra_usd_in({"peagle:budget-besides": "1.5", "peagle:budget-extra": "2"}) == 2
    assert extra_usd_in({}) == 0
