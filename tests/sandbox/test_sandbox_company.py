"""A company's VPC, key and tags in the sandbox, which refuses what AWS refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.sandboxes import IMAGE, ROLE, Account, Sandbox, refusal
from tests.support import with_keys

pytestmark = pytest.mark.sandbox
NAME = "acme-tiny"
DEPLOY = ("deploy", "tiny", "--instance-type", "ml.g5.xlarge", "--sandbox", "--yes",
          "--tag", "team=ml", "--tag", "cost center=a b")  # fmt: skip


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    return Account(sandbox)


def a_vpc(account: Account, reaches_s3: bool) -> dict[str, Any]:
    """The keys that name a subnet and a security group of a new VPC, and a prefix."""
    ec2 = account.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    group = ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    in_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    (table,) = ec2.describe_route_tables(Filters=in_vpc)["RouteTables"]
    if reaches_s3:
        ec2.create_vpc_endpoint(
            VpcId=vpc, ServiceName="com.amazonaws.us-east-1.s3",
            RouteTableIds=[table["RouteTableId"]],
        )  # fmt: skip
    return {"subnets": subnet, "security_groups": group, "name_prefix": "acme-"}


def test_a_subnet_that_reaches_no_weights_is_refused_before_anything_is_created(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    done = sandbox.peagle(*with_keys(tmp_path, DEPLOY, **a_vpc(account, reaches_s3=False)))
    assert done.returncode == 3, done.stderr
    assert "there is no route to S3 (the weights) from subnet-" in done.stderr
    assert account.sagemaker.list_models()["Models"] == []


def test_a_deploy_in_a_vpc_is_proved_and_removed(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    vpc = a_vpc(account, reaches_s3=True)
    keys = {**vpc, "network_isolation": True, "kms_key": "alias/models"}
    deploy = with_keys(tmp_path, DEPLOY, **keys)
    done = sandbox.peagle(*deploy, "--json")
    assert done.returncode == 0, done.stderr
    name = json.loads(done.stdout)["name"]
    endpoint = account.describe(name)
    config = account.sagemaker.describe_endpoint_config(
        EndpointConfigName=endpoint["EndpointConfigName"]
    )
    model_name = config["ProductionVariants"][0]["ModelName"]
    model = account.sagemaker.describe_model(ModelName=model_name)
    subnet, group = vpc["subnets"], vpc["security_groups"]
    assert name == NAME
    assert model["VpcConfig"] == {"Subnets": [subnet], "SecurityGroupIds": [group]}
    assert model["EnableNetworkIsolation"] is True
    assert config["KmsKeyId"] == "alias/models"
    for arn in (endpoint["EndpointArn"], config["EndpointConfigArn"], model["ModelArn"]):
        tags = account.sagemaker.list_tags(ResourceArn=arn)["Tags"]
        assert {"Key": "cost center", "Value": "a b"} in tags
    (bucket,) = (bucket_row["Name"] for bucket_row in account.s3.list_buckets()["Buckets"])
    assert {"Key": "team", "Value": "ml"} in account.s3.get_bucket_tagging(Bucket=bucket)["TagSet"]
    listed = account.s3.list_objects_v2(Bucket=bucket, Prefix=f"peagle-toolkit/{NAME}.")
    stored = account.s3.head_object(Bucket=bucket, Key=listed["Contents"][0]["Key"])
    assert stored["ServerSideEncryption"] == "aws:kms"
    again = sandbox.json(*deploy, "--json")
    assert again["changed"] is False
    tagged = sandbox.json(*deploy, "--tag", "stage=test", "--json")
    assert tagged["changed"] is False
    tags = account.sagemaker.list_tags(ResourceArn=endpoint["EndpointArn"])["Tags"]
    assert {"Key": "stage", "Value": "test"} in tags
    removed = sandbox.peagle("destroy", NAME, "--sandbox", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert account.sagemaker.list_models()["Models"] == []
    assert account.s3.list_buckets()["Buckets"] == []


def test_a_wrong_vpc_is_refused(account: Account) -> None:
    vpc = {"Subnets": ["subnet-0a1b2c3d"], "SecurityGroupIds": ["sg-0a1b2c3d"]}
    code, message = refusal(
        account.sagemaker.create_model, ModelName="m", ExecutionRoleArn=ROLE, VpcConfig=vpc,
        PrimaryContainer={"Image": IMAGE},
    )  # fmt: skip
    assert (code, "subnet-0a1b2c3d" in message) == ("ValidationException", True)
