"""Plans name only instances that the region hosts, and say what is unknown or scarce."""

from __future__ import annotations

from dataclasses import replace

from peagle.catalog.schema import Catalog
from peagle.catalog.tables import Scarcity
from peagle.planning import Plan
from tests.unit.planning.small_catalog import CATALOG, TODAY, codes, plan

SCARCE = Scarcity(note="was never free", checked=TODAY, source="a test")


def with_regions(*types: str, region: str = "us-east-1") -> Catalog:
    """The small catalogue, in which the types are only in that region."""
    changed = (
        one.model_copy(update={"regions": (region,), "prices": ()}) if one.type in types else one
        for one in CATALOG.instances.instances
    )
    table = CATALOG.instances.model_copy(update={"instances": tuple(changed)})
    return replace(CATALOG, instances=table)


def types(made: Plan) -> list[str]:
    return [candidate.instance_type for candidate in made.alternatives]


def test_a_type_that_the_region_does_not_have_is_not_proposed() -> None:
    catalog = with_regions("ml.g5.12xlarge", region="eu-west-1")

    assert "ml.g5.12xlarge" in types(plan(catalog=CATALOG))
    made = plan(catalog=catalog)

    assert "ml.g5.12xlarge" not in types(made)
    assert made.instance_type != "ml.g5.12xlarge"


def test_a_requested_type_that_the_region_does_not_have_is_an_error() -> None:
    catalog = with_regions("ml.g5.12xlarge", region="us-east-1")

    made = plan(catalog=catalog, region="eu-west-1", instance_type="ml.g5.12xlarge")

    (error,) = [finding for finding in made.findings if finding.level == "error"]
    assert error.code == "instance-not-in-region"
    assert "--region us-east-1" in error.fix
    assert types(made)
    assert "ml.g5.12xlarge" not in types(made)


def test_where_no_type_that_fits_is_hosted_the_plan_names_a_region() -> None:
    everything = [one.type for one in CATALOG.instances.instances]

    made = plan(catalog=with_regions(*everything, region="us-west-2"), region="us-east-1")

    assert codes(made, "error") == ["instance-not-in-region"]


def test_unknown_regions_are_a_note_unless_a_price_shows_the_region() -> None:
    assert "instance-region-unknown" not in codes(plan(catalog=CATALOG), "note")
    made = plan(catalog=CATALOG, region="ap-east-1")
    assert "instance-region-unknown" in codes(made, "note")


def test_a_scarce_type_is_a_warning_that_names_others() -> None:
    first = plan(catalog=CATALOG).instance_type
    changed = (
        one.model_copy(update={"scarce": SCARCE}) if one.type == first else one
        for one in CATALOG.instances.instances
    )
    table = CATALOG.instances.model_copy(update={"instances": tuple(changed)})

    made = plan(catalog=replace(CATALOG, instances=table))

    (finding,) = [one for one in made.findings if one.code == "instance-scarce"]
    assert finding.level == "warning"
    assert "was never free (a test)" in finding.message
    assert "--fallback-instance-types ml.g7e.2xlarge," in finding.fix
    assert first not in finding.fix
