"""Quotas, prices, roles and scaling tags in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from botocore.exceptions import ClientError

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


def test_an_unknown_quota_is_refused(account: Account) -> None:
    client = account.client("service-quotas")
    with pytest.raises(client.exceptions.NoSuchResourceException):
        client.get_service_quota(ServiceCode="sagemaker", QuotaCode="L-00000000")


def test_quotas_of_other_services_come_from_moto(account: Account) -> None:
    quotas = account.client("service-quotas").list_aws_default_service_quotas(ServiceCode="vpc")
    assert quotas["Quotas"][0]["ServiceCode"] == "vpc"


@pytest.mark.usefixtures("no_quota")
def test_without_quota_no_endpoint_is_created(account: Account) -> None:
    quotas = account.client("service-quotas").get_paginator("list_service_quotas")
    values = [
        quota["Value"]
        for page in quotas.paginate(ServiceCode="sagemaker")
        for quota in page["Quotas"]
        if quota["QuotaName"] == QUOTA_NAME
    ]
    assert values == [0.0]
    with pytest.raises(account.sagemaker.exceptions.ResourceLimitExceeded) as raised:
        account.endpoint()
    words = raised.value.response["Error"]["Message"]
    assert words.startswith(
        f"The account-level service limit '{INSTANCE_TYPE} for endpoint usage' is 0 Instances, "
        "with current utilization of 0 Instances and a request delta of 1 Instances."
    )
    assert account.sagemaker.list_endpoints()["Endpoints"] == []


def test_running_instances_count_towards_the_quota(account: Account) -> None:
    names = [account.endpoint() for _ in range(2)]
    with pytest.raises(account.sagemaker.exceptions.ResourceLimitExceeded):
        account.endpoint()
    for name in names:
        account.wait_until_stable(name)
        account.delete(name)


def test_a_quota_increase_is_granted(sandbox: Sandbox, account: Account) -> None:
    client = account.client("service-quotas")
    pages = client.get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker")
    (code,) = [
        quota["QuotaCode"]
        for page in pages
        for quota in page["Quotas"]
        if quota["QuotaName"] == QUOTA_NAME
    ]
    query = {"ServiceCode": "sagemaker", "QuotaCode": code}
    granted = client.request_service_quota_increase(**query, DesiredValue=3)["RequestedQuota"]
    assert (granted["Status"], granted["DesiredValue"]) == ("APPROVED", 3.0)
    assert client.get_service_quota(**query)["Quota"]["Value"] == 3.0
    with pytest.raises(ClientError) as refused:
        client.request_service_quota_increase(**query, DesiredValue=3)
    assert refused.value.response["Error"]["Code"] == "IllegalArgumentException"
    with sandbox.at_home():
        set_quota(INSTANCE_TYPE, 2)


def test_prices_come_in_pages(account: Account) -> None:
    client = account.client("pricing")
    query = {"ServiceCode": "AmazonSageMaker", "MaxResults": 10}
    first = client.get_products(**query)
    assert len(first["PriceList"]) == 10
    pages = list(client.get_paginator("get_products").paginate(**query))
    assert len(pages) > 2
    rows = [row for page in pages for row in page["PriceList"]]
    assert len(rows) == len(set(rows)) > 20


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


def test_managed_policies_can_be_attached(account: Account) -> None:
    iam = account.client("iam")
    iam.create_role(RoleName="mine", AssumeRolePolicyDocument="{}")
    policy = "arn:aws:iam::aws:policy/AmazonSageMakerFullAccess"
    iam.attach_role_policy(RoleName="mine", PolicyArn=policy)
    attached = iam.list_attached_role_policies(RoleName="mine")["AttachedPolicies"]
    assert attached[0]["PolicyArn"] == policy
    with pytest.raises(ClientError):
        iam.attach_role_policy(RoleName="mine", PolicyArn=f"{policy}NoSuch")


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
        Bucket="tagged-bucket",
        Tagging={"TagSet": [{"Key": DEPLOYMENT_TAG, "Value": "other"}]},
    )
    aws = account.connect()

    found = {(one.service, one.kind, one.name) for one in tagged(aws, DEPLOYMENT_TAG)}
    (mine,) = tagged(aws, DEPLOYMENT_TAG, "mine", ("sagemaker:model", "s3"))

    assert {("sagemaker", "model", name), ("s3", "", "tagged-bucket")} <= found
    assert (mine.name, mine.tags["team"]) == (name, "search")
