"""What a plan says of a price that is unknown, or known elsewhere only."""

from __future__ import annotations

from datetime import date

import pytest

from peagle.catalog import find_instance, load_catalog
from peagle.catalog.tables import Instance, Price
from peagle.planning import Options, make_plan
from peagle.planning.runtime import price_of
from tests.unit.planning.small_catalog import plan

LISTED = Price(usd_per_hour=72.5, region="us-east-2", date=date(2026, 10, 3), source="a list")


@pytest.fixture
def unpriced() -> Instance:
    """A type without a price."""
    made = find_instance(load_catalog().instances, "ml.p5e.48xlarge")
    return made.model_copy(update={"prices": ()})


@pytest.mark.parametrize("limit", [None, 5.0])
def test_a_missing_price_is_one_finding(limit: float | None) -> None:
    made = plan(instance_type="ml.g6e.xlarge", region="us-east-1", max_price_per_hour=limit)

    said = [f for f in made.findings if "price" in f.message]
    assert [f.code for f in said] == ["price-above-limit" if limit else "price-unknown"]
    assert "price" in said[0].message


@pytest.mark.thorough
@pytest.mark.parametrize(
    "type", ["ml.p5e.48xlarge", "ml.p6-b200.48xlarge", "ml.p6-b300.48xlarge", "ml.g7.2xlarge"]
)
def test_types_that_have_no_price_say_once_how_to_get_one(type: str) -> None:
    made = make_plan(Options(pair="gpt-oss-20b", instance_type=type), load_catalog())

    assert made.price_per_hour_usd is None
    (finding,) = (one for one in made.findings if "price" in one.code)
    assert (finding.code, finding.level) == ("price-unknown", "warning")
    refresh = ("peagle", "catalog", "refresh", "--prices", "--region", "us-east-1")
    assert finding.command == refresh


def test_a_price_of_another_region_is_named_and_not_used(unpriced: Instance) -> None:
    choice = price_of(unpriced.model_copy(update={"prices": (LISTED,)}), "us-east-1")

    assert choice.value is None
    (finding,) = choice.findings
    assert "no price for ml.p5e.48xlarge in us-east-1" in finding.message
    assert "in us-east-2 it is $72.50 an hour" in finding.message


def test_an_unknown_price_is_said_so(unpriced: Instance) -> None:
    (finding,) = price_of(unpriced, "us-east-1").findings

    assert finding.message == "the catalogue has no price for ml.p5e.48xlarge"
