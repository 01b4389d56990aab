"""Hints for an unknown region: the nearest, else large ones and the URL of the list."""

from __future__ import annotations

from peagle.catalog import load_catalog
from peagle.catalog.tables import ALL_REGIONS, LARGE_REGIONS, region_hint
from peagle.errors import NotFound
from peagle.planning import Options, make_plan
from tests.support import raises_code


def test_the_nearest_region_is_suggested() -> None:
    assert "us-east-1" in region_hint("us-est-1", LARGE_REGIONS)
    assert ALL_REGIONS not in region_hint("us-est-1", LARGE_REGIONS)


def test_large_regions_are_suggested_if_no_name_is_similar() -> None:
    known = load_catalog().runtimes.accounts
    assert set(LARGE_REGIONS) <= set(known)

    assert (
        region_hint("nowhere", known)
        == f"such as {', '.join(LARGE_REGIONS)}; all of them: {ALL_REGIONS}"
    )
    assert region_hint("nowhere", ["cn-north-1"]).startswith("such as cn-north-1; ")


def test_a_plan_does_not_list_all_regions() -> None:
    with raises_code("not-found", NotFound) as unknown:
        make_plan(Options(pair="tiny", region="nowhere"), load_catalog())

    assert unknown.value.fix.startswith("such as us-east-1, ")
    assert "af-south-1" not in unknown.value.fix
