"""Every pair and target of the catalogue that ships has a plan."""

from __future__ import annotations

import pytest

from peagle.catalog import load_catalog
from peagle.findings import errors
from peagle.planning import Options, make_plan
from tests.support import bundled_catalog

with bundled_catalog():
    CATALOG = load_catalog()
PAIRS = [
    f"{target.short_name}+{drafter.name}"
    for target in CATALOG.targets.values()
    for drafter in target.drafters
]


@pytest.mark.parametrize("pair", PAIRS)
def test_every_bundled_pair_has_a_plan_without_errors(pair: str) -> None:
    made = make_plan(Options(pair=pair), CATALOG)
    assert errors(made.findings) == []
    assert made.fit.fits
    assert made.price_per_hour_usd is not None
    assert made.speculation is not None


@pytest.mark.parametrize("target", [target.short_name for target in CATALOG.targets.values()])
def test_every_bundled_target_can_be_served_alone(target: str) -> None:
    made = make_plan(Options(pair=target, speculation=False), CATALOG)
    assert errors(made.findings) == []
    assert made.drafter is None
