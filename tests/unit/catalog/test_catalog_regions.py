"""Hints for an unknown region: the nearest, else large ones and the URL of the list."""

from __future__ import annotations

from datetime import date

import pytest

from peagle.catalog.tables import Instance, Price, nearest_region

REGIONS = ("ap-south-1", "cn-north-1", "eu-west-1", "us-east-1", "us-east-2", "us-west-2")


@pytest.mark.parametrize(
    ("region", "nearest"),
    [
        ("us-west-1", "us-west-2"),
        ("us-east-2", "us-east-2"),
        ("ca-central-1", "us-east-1"),
        ("eu-central-1", "eu-west-1"),
        ("me-south-1", "eu-west-1"),
        ("ap-northeast-1", "ap-south-1"),
        ("cn-northwest-1", "cn-north-1"),
        ("us-gov-west-1", "us-east-1"),
        ("sa-east-1", "us-east-1"),
    ],
)
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
