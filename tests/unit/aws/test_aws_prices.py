"""Today's prices; without an answer the snapshot, with a warning."""

import json
from datetime import UTC, date, datetime

import pytest

from peagle.aws.client import Keys, connect
from peagle.aws.prices import (
    SOURCE,
    fresh_prices,
    prices_in,
    with_prices,
)
from peagle.catalog.tables import Instance, InstanceTable, Price
from tests.unit.aws.network import denied
from tests.unit.aws.world import World

SNAPSHOT = date(2026, 7, 1)


def an_instance(name: str, *prices: Price) -> Instance:
    return Instance(
        type=name, gpu="A10G", gpu_count=1, gpu_memory_mib=22888, gpu_architecture="sm_86",
        vcpus=4, memory_gib=16, prices=prices,
    )  # fmt: skip


def snapshot(region: str, usd: float = 1.0) -> Price:
    return Price(usd_per_hour=usd, region=region, date=SNAPSHOT, source="second-hand")


TABLE = InstanceTable(
    checked=SNAPSHOT,
    source="a test",
    instances=(
        an_instance("ml.g5.xlarge", snapshot("us-east-1"), snapshot("eu-west-1", 2.0)),
        an_instance("ml.g5.2xlarge", snapshot("us-east-1", 1.5)),
    ),
)


def row(usd: str, **attributes: str) -> str:
    product = {"component": "Hosting", "instanceName": "ml.g5.xlarge", "regionCode": "us-east-1"}
    dimensions = {"d": {"unit": "Hrs", "pricePerUnit": {"USD": usd}}}
    return json.dumps(
        {
            "product": {"attributes": {**product, **attributes}},
            "terms": {"OnDemand": {"t": {"priceDimensions": dimensions}}},
        }
    )


def test_the_price_of_the_region_is_replaced_and_dated(world: World) -> None:
    world.cloud.price = 1.25
    listed, findings = fresh_prices(world.aws)
    assert findings == ()
    table = with_prices(TABLE, listed)
    assert {price.region: price.usd_per_hour for price in table.instances[0].prices} == {
        "eu-west-1": 2.0,
        "us-east-1": 1.25,
    }
    last = table.instances[0].prices[0]
    assert (last.source, last.date) == ("AWS Pricing API", datetime.now(UTC).date())
    assert table.instances[1] == TABLE.instances[1]


@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException"])
def test_denied_call_gives_snapshot_and_a_warning(world: World, code: str) -> None:
    world.cloud.before = denied("get_products", code=code)
    listed, (finding,) = fresh_prices(world.aws)
    assert listed == {}
    assert (finding.code, finding.level) == ("price-snapshot", "warning")


def test_rows_of_other_components_and_regions_are_ignored() -> None:
    rows = [
        row("1.1", usagetype="USE1-AsyncInf:ml.g5.xlarge"),
        row("1.0", usagetype="USE1-Host:ml.g5.xlarge"),
        row("9.0", component="Training"),
        row("9.0", regionCode="eu-west-1"),
        row("0.0", instanceName="ml.free"),
        row("2.0", instanceName="ml.g5.2xlarge"),
        row("3.0", instanceName="ml.g5.2xlarge"),
    ]
    assert prices_in(rows, "us-east-1") == {"ml.g5.2xlarge": 3.0, "ml.g5.xlarge": 1.0}


@pytest.mark.parametrize(
    ("region", "place"), [("eu-west-1", "us-east-1"), ("cn-north-1", "cn-northwest-1")]
)
def test_prices_come_from_the_region_of_the_pricing_api(region: str, place: str) -> None:
    assert connect(region, keys=Keys("a", "b")).client("pricing").meta.region_name == place


@pytest.mark.parametrize(("scope", "codes"), [
    (None, []), ("sandbox", ["price-not-from-aws"]),
])  # fmt: skip
def test_prices_that_are_not_aws_s_have_a_note(
    world: World, scope: str | None, codes: list[str]
) -> None:
    world.aws.record_scope = scope
    world.cloud.price = 1.25
    listed, findings = fresh_prices(world.aws)
    assert {price.source for price in listed.values()} == {scope or SOURCE}
    assert [finding.code for finding in findings] == codes
