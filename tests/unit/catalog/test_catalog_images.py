"""The URI of the container image in each region."""

from datetime import date

import pytest

from peagle.catalog import image_uri, load_catalog
from peagle.catalog.tables import Instance, Price, nearest_region
from peagle.errors import NotFound
from tests.support import raises_code

TABLE = load_catalog().runtimes
RUNTIMES = {runtime.vllm: runtime for runtime in TABLE.runtimes}
NEWEST_EVERYWHERE = RUNTIMES["0.28.0"]


def test_a_region_without_images_suggests_the_nearest() -> None:
    with raises_code("region-unknown", NotFound) as refused:
        image_uri(TABLE, NEWEST_EVERYWHERE, "us-east-11")
    assert "did you mean us-east-1" in refused.value.fix


# Hints for an unknown region: the nearest, else large ones and the URL of the list.
REGIONS = ("ap-south-1", "cn-north-1", "eu-west-1", "us-east-1", "us-east-2", "us-west-2")


@pytest.mark.parametrize(("region", "nearest"), [
    ("us-west-1", "us-west-2"),
    ("us-east-3", "us-east-1"),
    ("eu-central-1", "eu-west-1"),
    ("ap-southeast-1", "ap-south-1"),
    ("cn-northwest-1", "cn-north-1"),
    ("me-south-1", "eu-west-1"),
    ("us-gov-west-1", "us-east-1"),
])  # fmt: skip
def test_the_nearest_region_that_hosts_a_type(region: str, nearest: str) -> None:
    assert nearest_region(region, REGIONS) == nearest


def test_a_type_is_hosted_where_it_is_listed_or_priced() -> None:
    price = Price(usd_per_hour=1, region="sa-east-1", date=date(2026, 7, 1), source="someone")
    instance = Instance(
        type="ml.g9.xlarge", gpu="T4", gpu_count=1, gpu_memory_mib=1, gpu_architecture="sm_75",
        vcpus=1, memory_gib=1, prices=(price,),
    )  # fmt: skip
    listed = instance.model_copy(update={"regions": ("eu-west-1",)})
    assert (instance.hosted_in("sa-east-1"), instance.hosted_in("eu-west-1")) == (True, None)
    assert (listed.hosted_in("sa-east-1"), listed.hosted_in("eu-west-1")) == (True, True)
    assert listed.hosted_in("us-east-1") is False
