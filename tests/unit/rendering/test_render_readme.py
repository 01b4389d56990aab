"""The README shows the price as `peagle plan` does."""

from __future__ import annotations

import pytest

from peagle.cli.output.plan import price_text
from peagle.findings import note
from peagle.planning.plan import Plan
from peagle.render.files import readme
from tests.unit.aws.plans import a_plan

STAND_IN = note("price-not-amazons", "price", "asked of the sandbox", "an account knows")


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (a_plan(price_date="2026-07-01"), "(list price of 2026-07-01)"),
        (
            a_plan(price_date="2026-07-01", findings=(STAND_IN,)),
            "(not AWS's price, queried on 2026-07-01)",
        ),
    ],
)
def test_the_readme_names_the_origin_of_the_price(plan: Plan, words: str) -> None:
    assert plan.price_per_hour_usd is not None
    assert words in readme(plan, "costs{price}").content.decode()
    assert words in price_text(plan)
