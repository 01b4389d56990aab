"""What runs besides the instances of a deployment, and what everything costs then."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.aws.sagemaker import Endpoint
from peagle.deploy.besides import during_update
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
