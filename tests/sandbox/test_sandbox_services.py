"""Quotas, prices, roles and scaling tags in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from peagle.aws.regions import tagged
from peagle.catalog import load_catalog
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.sandbox.client import set_quota
from tests.sandbox.sandboxes import IMAGE, INSTANCE_TYPE, ROLE, Account, Sandbox

pytestmark = pytest.mark.sandbox

QUOTA_NAME = f"{INSTANCE_TYPE} for endpoint usage"


@pytest.fixture
def no_quota(sandbox: Sandbox) -> Iterator[None]:
    with sandbox.at_home():
        set_quota(INSTANCE_TYPE, 0)
        yield
        set_quota(INSTANCE_TYPE, 2)


def test_the_quota_of_an_instance_type_is_found_by_name(account: Account) -> None:
    client = account.client("service-quotas")
    for listing in ("list_service_quotas", "list_aws_default_service_quotas"):
        pages = client.get_paginator(listing).paginate(ServiceCode="sagemaker")
        found = [one for page in pages for one in page["Quotas"] if one["QuotaName"] == QUOTA_NAME]
        assert [(one["Value"], one["Adjustable"]) for one in found] == [(2.0, True)]
    code = found[0]["QuotaCode"]
    quota = client.get_service_quota(ServiceCode="sagemaker", QuotaCode=code)["Quota"]
    assert quota["QuotaName"] == QUOTA_NAME
    with pytest.raises(client.exceptions.NoSuchResourceException):
        client.get_service_quota(ServiceCode="sagemaker", QuotaCode="L-00000000")


@pytest.mark.usefixtures("no_quota")
def test_without_quota_no_endpoint_is_created(account: Account) -> None:
    with pytest.raises(account.sagemaker.exceptions.ResourceLimitExceeded) as raised:
        account.endpoint()
    assert "is 0 Instances" in raised.value.response["Error"]["Message"]
    assert account.sagemaker.list_endpoints()["Endpoints"] == []


def test_prices_are_those_of_the_catalogue(account: Account) -> None:
    client = account.client("pricing")
    checked = 0
    for instance in load_catalog().instances.instances:
        for price in instance.prices:
            filters = [
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in (
                    ("instanceName", instance.type),
                    ("regionCode", price.region),
                    ("component", "Hosting"),
                )
            ]
            answer = client.get_products(ServiceCode="AmazonSageMaker", Filters=filters)
            (product,) = [json.loads(text) for text in answer["PriceList"]]
            (term,) = product["terms"]["OnDemand"].values()
            (dimension,) = term["priceDimensions"].values()
            assert float(dimension["pricePerUnit"]["USD"]) == price.usd_per_hour
            checked += 1
    assert checked > 10


def test_resources_are_found_by_tag(account: Account) -> None:
    sagemaker, name = account.client("sagemaker"), "tagged-model"
    sagemaker.create_model(
        ModelName=name,
        PrimaryContainer={"Image": IMAGE},
        ExecutionRoleArn=ROLE,
        Tags=[{"Key": DEPLOYMENT_TAG, "Value": "mine"}, {"Key": "team", "Value": "search"}],
    )
    bucket = account.client("s3")
    bucket.create_bucket(Bucket="tagged-bucket")
    bucket.put_bucket_tagging(
        Bucket="tagged-bucket", Tagging={"TagSet": [{"Key": DEPLOYMENT_TAG, "Value": "other"}]}
    )
    aws = account.connect()

    found = {(one.service, one.kind, one.name) for one in tagged(aws, DEPLOYMENT_TAG)}
    (mine,) = tagged(aws, DEPLOYMENT_TAG, "mine", ("sagemaker:model", "s3"))

    assert {("sagemaker", "model", name), ("s3", "", "tagged-bucket")} <= found
    assert (mine.name, mine.tags["team"]) == (name, "search")
