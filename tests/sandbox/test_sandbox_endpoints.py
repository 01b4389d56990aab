"""SageMaker in the sandbox: the life of an endpoint, what a call needs, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from peagle.aws.regions import find_by_tag
from peagle.catalog import load_catalog
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.sandbox.client import set_quota
from tests.sandbox.sandboxes import (
    BUCKET,
    IMAGE,
    INSTANCE_TYPE,
    OUR_IMAGE,
    ROLE,
    Account,
    folder_on_s3,
    refusal,
    until,
)

pytestmark = pytest.mark.sandbox
ARN = "arn:aws:sagemaker:us-east-1:123456789012"
INVALID = "ValidationException"


@pytest.fixture
def crashed(account: Account) -> Iterator[str]:
    name = account.endpoint({"VLLM_FAKE_ENGINE": "crash"})
    yield name
    account.delete(name)


@pytest.fixture
def quota(account: Account) -> Iterator[None]:
    with account.sandbox.at_home():
        set_quota(INSTANCE_TYPE, 4)
        yield
        set_quota(INSTANCE_TYPE, 2)


def test_a_crashed_engine_is_the_failure_reason_and_only_deleted(
    account: Account, crashed: str
) -> None:
    failed = account.wait_until_stable(crashed)
    assert failed["EndpointStatus"] == "Failed"
    reason = "The engine exited: ValueError: the head does not belong to this target"
    assert failed["FailureReason"].endswith(reason)
    update = {"EndpointName": crashed, "EndpointConfigName": crashed}
    code, message = refusal(account.sagemaker.update_endpoint, **update)
    assert (code, "Cannot update failed endpoint" in message) == (INVALID, True)


def test_what_disappears_after_the_model_was_created_fails_the_endpoint(account: Account) -> None:
    account.s3.put_object(Bucket=BUCKET, Key="gone/config.json", Body=b"{}")
    account.model("gone", ModelDataSource={"S3DataSource": folder_on_s3("gone/")})
    account.s3.delete_object(Bucket=BUCKET, Key="gone/config.json")
    image = OUR_IMAGE.replace(":1", ":2")
    account.push(image)
    account.model("later", Image=image)
    tag = [{"imageTag": "2"}]
    account.client("ecr").batch_delete_image(repositoryName="peagle-tiny", imageIds=tag)
    for name, reason in (
        ("gone", 'Failed to download model data for container "container_1" from URL'),
        ("later", "Please make sure all images included in the model"),
    ):
        config = account.config(name, name)
        account.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=config)
        assert account.wait_until_stable(name)["FailureReason"].startswith(reason)
        account.delete(name)


def test_names_are_unique_and_what_is_in_use_can_be_deleted(account: Account, live: str) -> None:
    create = account.sagemaker.create_endpoint
    for code, message in (
        refusal(account.model, name=live),
        refusal(account.config, name=live, model=live),
        refusal(create, EndpointName=live, EndpointConfigName=live),
    ):
        assert (code, message.startswith("Cannot create already existing")) == (INVALID, True)
    account.sagemaker.delete_endpoint_config(EndpointConfigName=live)
    account.sagemaker.delete_model(ModelName=live)
    assert account.describe(live)["EndpointConfigName"] == live
    assert account.invoke(live, {})["path"] == "/invocations"


def test_a_busy_endpoint_refuses_changes(account: Account) -> None:
    name = account.endpoint()
    busy = (INVALID, f'Cannot update in-progress endpoint "{ARN}:endpoint/{name}".')
    assert account.describe(name)["EndpointStatus"] == "Creating"
    assert refusal(account.sagemaker.delete_endpoint, EndpointName=name) == busy
    update = account.sagemaker.update_endpoint
    assert refusal(update, EndpointName=name, EndpointConfigName=name) == busy
    account.wait_until_stable(name)
    account.delete(name)


def test_an_update_switches_when_the_new_engine_is_healthy(account: Account, live: str) -> None:
    old = account.sandbox.json("sandbox", "status")["endpoints"][0]
    account.config("better", account.model("better", {"SM_VLLM_SEED": "7"}))
    account.sagemaker.update_endpoint(EndpointName=live, EndpointConfigName="better")
    during = account.describe(live)
    assert (during["EndpointStatus"], during["EndpointConfigName"]) == ("Updating", live)
    assert during["PendingDeploymentSummary"]["EndpointConfigName"] == "better"
    assert "--seed" not in account.invoke(live, {})["argv"], "the old engine answers meanwhile"
    after = account.wait_until_stable(live)
    assert (after["EndpointStatus"], after["EndpointConfigName"]) == ("InService", "better")
    assert "PendingDeploymentSummary" not in after
    assert "--seed" in account.invoke(live, {})["argv"]
    new = account.sandbox.json("sandbox", "status")["endpoints"][0]
    assert new["pid"] != old["pid"]
    assert old["pid"] not in account.sandbox.processes()
    account.config("worse", account.model("worse", {"VLLM_FAKE_ENGINE": "crash"}))
    account.sagemaker.update_endpoint(EndpointName=live, EndpointConfigName="worse")
    kept = account.wait_until_stable(live)
    assert (kept["EndpointStatus"], kept["EndpointConfigName"]) == ("InService", "better")
    assert "the head does not belong to this target" in kept["FailureReason"]
    assert account.invoke(live, {})["path"] == "/invocations"


def test_an_endpoint_whose_engine_dies_later_is_failed_with_its_reason(account: Account) -> None:
    name = account.endpoint()
    account.wait_until_stable(name)
    refusal(account.invoke, name=name, document={"do": "die"})
    until(
        lambda: account.sandbox.json("sandbox", "status")["endpoints"],
        lambda rows: all(row["pid"] is None for row in rows if row["name"] == name),
    )
    failed = account.describe(name)
    assert failed["EndpointStatus"] == "Failed"
    assert failed["FailureReason"] == "The engine exited: RuntimeError: the engine crashed"
    code, message = refusal(account.invoke, name=name, document={})
    assert (code, message.endswith("its state is Failed.")) == ("ValidationError", True)
    account.delete(name)


@pytest.mark.parametrize(("variant", "expected"), [
    ({"InstanceType": "ml.bogus"}, "ProductionVariants[0].InstanceType: 'ml.bogus'"),
    ({"ContainerStartupHealthCheckTimeoutInSeconds": 7200}, "at most 3600"),
])  # fmt: skip
def test_an_invalid_variant_is_refused(
    account: Account, variant: dict[str, Any], expected: str
) -> None:
    code, message = refusal(account.config, name="bounds", model="none", **variant)
    assert (code, message[:29]) == (INVALID, "1 validation error detected: ")
    assert expected in message


def test_models_and_configurations_are_described_as_created(account: Account) -> None:
    model: dict[str, Any] = {
        "ModelName": "given",
        "ExecutionRoleArn": ROLE,
        "EnableNetworkIsolation": True,
        "PrimaryContainer": {"Image": IMAGE, "Environment": {"A": 'ü "%s" \n'}},
    }
    variant = {
        "VariantName": "v",
        "ModelName": "given",
        "InitialInstanceCount": 1,
        "InitialVariantWeight": 0.5,
        "InstanceType": "ml.g6e.2xlarge",
        "InferenceAmiVersion": "al2023-ami-sagemaker-inference-gpu-4-1",
        "ContainerStartupHealthCheckTimeoutInSeconds": 900,
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
    }
    config: dict[str, Any] = {
        "EndpointConfigName": "given",
        "ProductionVariants": [variant],
        "ExecutionRoleArn": ROLE,
        "EnableNetworkIsolation": False,
        "MetricsConfig": {"EnableEnhancedMetrics": True},
    }
    client = account.sagemaker
    client.create_model(**model)
    client.create_endpoint_config(**config)
    for created, described, arn in (
        (model, client.describe_model(ModelName="given"), "ModelArn"),
        (config, client.describe_endpoint_config(EndpointConfigName="given"), "EndpointConfigArn"),
    ):
        assert {key: described[key] for key in described if key in created} == created
        assert set(described) - set(created) == {arn, "CreationTime", "ResponseMetadata"}


def test_tags_of_all_resources_can_be_listed_and_changed(account: Account, live: str) -> None:
    client = account.sagemaker
    arns = [
        client.describe_model(ModelName=live)["ModelArn"],
        client.describe_endpoint_config(EndpointConfigName=live)["EndpointConfigArn"],
        account.describe(live)["EndpointArn"],
    ]
    for arn in arns:
        for value in ("tagged", "new"):
            tags = [{"Key": DEPLOYMENT_TAG, "Value": value}]
            client.add_tags(ResourceArn=arn, Tags=tags)
            assert client.list_tags(ResourceArn=arn)["Tags"] == tags
    account.s3.create_bucket(Bucket="tagged-bucket")
    account.s3.put_bucket_tagging(Bucket="tagged-bucket", Tagging={"TagSet": tags})
    tagged = account.client("resourcegroupstaggingapi").get_resources()["ResourceTagMappingList"]
    assert {*arns, "arn:aws:s3:::tagged-bucket"} <= {each["ResourceARN"] for each in tagged}
    names = find_by_tag(account.connect(), DEPLOYMENT_TAG, None, ["endpoint"])
    assert live in {name for _, name, _ in names}
    for arn in arns:
        client.delete_tags(ResourceArn=arn, TagKeys=[DEPLOYMENT_TAG])
        assert client.list_tags(ResourceArn=arn)["Tags"] == []
    assert refusal(client.list_tags, ResourceArn=f"{arns[2]}s")[0] == INVALID


@pytest.mark.parametrize(("service", "operation", "parameters", "code"), [
    ("pricing", "describe_services", {}, "UnknownOperationException"),
    ("sts", "decode_authorization_message", {"EncodedMessage": "x"}, "InvalidAction"),
])  # fmt: skip
def test_an_operation_that_the_sandbox_lacks_is_an_error_of_aws(
    account: Account, service: str, operation: str, parameters: dict[str, Any], code: str
) -> None:
    code, message = refusal(getattr(account.client(service), operation), **parameters)
    assert code.startswith(code)
    assert "The sandbox does not have the operation" in message


def create_model(account: Account, role: str = ROLE, **container: Any) -> None:
    account.sagemaker.create_model(
        ModelName="m", ExecutionRoleArn=role, PrimaryContainer={"Image": IMAGE, **container}
    )
    account.sagemaker.delete_model(ModelName="m")


def test_a_role_that_sagemaker_cannot_assume_is_refused(account: Account) -> None:
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "ec2.amazonaws.com"},
        "Action": "sts:AssumeRole",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    account.client("iam").create_role(RoleName="other", AssumeRolePolicyDocument=policy)
    for name in ("other", "none"):
        arn = ROLE.replace("peagle-sandbox-role", name)
        code, message = refusal(create_model, account=account, role=arn)
        assert (code, message.startswith(f"Could not assume role {arn}.")) == (INVALID, True)


def test_images_are_those_of_the_registry_and_of_other_accounts(account: Account) -> None:
    missing = (f"{OUR_IMAGE}0", OUR_IMAGE.replace("tiny", "none"))
    for image in missing:
        expected = (INVALID, f"Requested image {image} not found.")
        assert refusal(create_model, account=account, Image=image) == expected
    for image in (OUR_IMAGE, IMAGE, IMAGE.replace("763104351884", "210987654321")):
        create_model(account, Image=image)


@pytest.mark.parametrize("uri", ["s3://no-such-bucket/a/", f"s3://{BUCKET}/none/"])
def test_model_data_that_is_not_in_s3_is_refused(account: Account, uri: str) -> None:
    source = {"S3Uri": uri, "S3DataType": "S3Prefix", "CompressionType": "None"}
    expected = (INVALID, f"Could not find model data at {uri}.")
    data = {"S3DataSource": source}
    assert refusal(create_model, account=account, ModelDataSource=data) == expected
    more = [{"ChannelName": "drafter", **data}]
    assert refusal(create_model, account=account, AdditionalModelDataSources=more) == expected


def scale(account: Account, name: str, **desired: Any) -> None:
    account.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "AllTraffic", **desired}]
    )


@pytest.mark.usefixtures("quota")
def test_an_update_retains_what_scaling_changed_if_asked_to(account: Account, live: str) -> None:
    scale(account, live, DesiredInstanceCount=2, DesiredWeight=0.5)
    account.wait_until_stable(live)
    account.config("next", live)
    retain = {"RetainAllVariantProperties": True}
    number = [{"VariantPropertyType": "DesiredInstanceCount"}]
    options: dict[str, Any]
    for options, counts in (
        (retain, (2, 0.5)),
        (
            {"RetainAllVariantProperties": True, "ExcludeRetainedVariantProperties": number},
            (1, 0.5),
        ),
        ({}, (1, 1.0)),
    ):
        account.sagemaker.update_endpoint(EndpointName=live, EndpointConfigName="next", **options)
        (variant,) = account.wait_until_stable(live)["ProductionVariants"]
        assert (variant["CurrentInstanceCount"], variant["CurrentWeight"]) == counts


def test_scaling_respects_the_quota_and_the_variants(account: Account, live: str) -> None:
    code, message = refusal(scale, account=account, name=live, DesiredInstanceCount=3)
    assert code == "ResourceLimitExceeded"
    assert "with current utilization of 1 Instances and a request delta of 2 Instances" in message
    call = account.sagemaker.update_endpoint_weights_and_capacities
    desired = [{"VariantName": "None", "DesiredInstanceCount": 1}]
    assert refusal(call, EndpointName=live, DesiredWeightsAndCapacities=desired)[0] == INVALID
    assert account.describe(live)["EndpointStatus"] == "InService"


def test_a_variant_that_is_scaled_automatically_keeps_its_type(account: Account, live: str) -> None:
    target = {
        "ServiceNamespace": "sagemaker",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
        "ResourceId": f"endpoint/{live}/variant/AllTraffic",
    }
    scaling = account.client("application-autoscaling")
    scaling.register_scalable_target(**target, MinCapacity=1, MaxCapacity=2)
    account.config("smaller", live, InstanceType="ml.g5.xlarge")
    update = {"EndpointName": live, "EndpointConfigName": "smaller"}
    code, message = refusal(account.sagemaker.update_endpoint, **update)
    assert (code, "must be deregistered as scalable targets" in message) == (INVALID, True)
    scaling.deregister_scalable_target(**target)
    account.sagemaker.update_endpoint(**update)
    assert account.wait_until_stable(live)["EndpointConfigName"] == "smaller"


def test_quotas_are_listed_and_limit_endpoints(account: Account) -> None:
    client, name = account.client("service-quotas"), f"{INSTANCE_TYPE} for endpoint usage"
    for listing in ("list_service_quotas", "list_aws_default_service_quotas"):
        pages = client.get_paginator(listing).paginate(ServiceCode="sagemaker")
        (quota,) = [row for page in pages for row in page["Quotas"] if row["QuotaName"] == name]
        assert (quota["Value"], quota["Adjustable"]) == (2.0, True)
    code = {"ServiceCode": "sagemaker", "QuotaCode": quota["QuotaCode"]}
    assert client.get_service_quota(**code)["Quota"]["QuotaName"] == name
    with pytest.raises(client.exceptions.NoSuchResourceException):
        client.get_service_quota(**{**code, "QuotaCode": "L-00000000"})
    with account.sandbox.at_home():
        set_quota(INSTANCE_TYPE, 0)
        with pytest.raises(account.sagemaker.exceptions.ResourceLimitExceeded):
            account.endpoint()
        set_quota(INSTANCE_TYPE, 2)


def test_prices_are_those_of_the_catalogue(account: Account) -> None:
    priced = [item for item in load_catalog().instances.instances if item.prices]
    assert len(priced) > 10
    for instance in priced[:5]:
        price = instance.prices[0]
        fields = {"instanceName": instance.type, "regionCode": price.region, "component": "Hosting"}
        filters = [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()]
        answer = account.client("pricing").get_products(
            ServiceCode="AmazonSageMaker", Filters=filters
        )
        (product,) = [json.loads(text) for text in answer["PriceList"]]
        (term,) = product["terms"]["OnDemand"].values()
        (dimension,) = term["priceDimensions"].values()
        assert float(dimension["pricePerUnit"]["USD"]) == price.usd_per_hour
