"""What SageMaker requires of other services: roles, images, model data, quotas, scaling targets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from peagle.sandbox.client import set_quota
from tests.sandbox.sandboxes import BUCKET, IMAGE, INSTANCE_TYPE, OUR_IMAGE, ROLE, Account, refusal

pytestmark = pytest.mark.sandbox

OF_OTHERS = IMAGE.replace("763104351884", "210987654321")


@pytest.fixture
def quota(account: Account) -> Iterator[None]:
    with account.sandbox.at_home():
        set_quota(INSTANCE_TYPE, 4)
        yield
        set_quota(INSTANCE_TYPE, 2)


def create_model(account: Account, role: str = ROLE, **container: Any) -> None:
    account.sagemaker.create_model(
        ModelName="m", ExecutionRoleArn=role, PrimaryContainer={"Image": IMAGE, **container}
    )
    account.sagemaker.delete_model(ModelName="m")


@pytest.mark.parametrize("principal", [None, "ec2.amazonaws.com"])
def test_a_role_that_sagemaker_cannot_assume_is_refusal(
    account: Account, principal: str | None
) -> None:
    iam = account.client("iam")
    arn = ROLE.replace("peagle-sandbox-role", "other")
    if principal:
        statement = {
            "Effect": "Allow",
            "Principal": {"Service": principal},
            "Action": "sts:AssumeRole",
        }
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.create_role(RoleName="other", AssumeRolePolicyDocument=policy)
    code, message = refusal(create_model, account=account, role=arn)
    assert (code, message) == (
        "ValidationException",
        f"Could not assume role {arn}. Please ensure that the role exists and allows principal "
        "'sagemaker.amazonaws.com' to assume the role.",
    )


@pytest.mark.parametrize("image", [f"{OUR_IMAGE}0", OUR_IMAGE.replace("tiny", "none")])
def test_an_image_that_the_account_does_not_have_is_refusal(account: Account, image: str) -> None:
    code, message = refusal(create_model, account=account, Image=image)
    assert (code, message) == ("ValidationException", f"Requested image {image} not found.")
    for there in (OUR_IMAGE, IMAGE, OF_OTHERS):
        create_model(account, Image=there)


def test_ecr_has_the_images_that_endpoints_can_use(account: Account) -> None:
    ecr = account.client("ecr")

    def found(image: str) -> list[Any]:
        registry, _, name = image.partition("/")
        repository, _, tag = name.partition(":")
        answer = ecr.batch_get_image(
            registryId=registry[:12], repositoryName=repository, imageIds=[{"imageTag": tag}]
        )
        return list(answer["images"])

    (ours,) = found(OUR_IMAGE)
    by_digest = [{"imageDigest": ours["imageId"]["imageDigest"]}]
    assert ecr.batch_get_image(repositoryName="peagle-tiny", imageIds=by_digest)["images"]
    assert "imageDigest" not in found(IMAGE)[0]["imageId"]
    assert found(f"{OUR_IMAGE}0") == []
    with pytest.raises(ecr.exceptions.RepositoryNotFoundException):
        found(OUR_IMAGE.replace("tiny", "none"))


def test_an_image_deleted_later_fails_the_endpoint(account: Account) -> None:
    image = OUR_IMAGE.replace(":1", ":2")
    account.push(image)
    name = account.config("later", account.model("later", Image=image))
    account.client("ecr").batch_delete_image(
        repositoryName="peagle-tiny", imageIds=[{"imageTag": "2"}]
    )
    account.sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)
    found = account.wait_until_stable(name)
    assert found["EndpointStatus"] == "Failed"
    assert found["FailureReason"].startswith("Please make sure all images included in the model")
    account.delete(name)


@pytest.mark.parametrize(
    ("uri", "kind", "compression"),
    [
        ("s3://no-such-bucket/a/", "S3Prefix", "None"),
        (f"s3://{BUCKET}/none/", "S3Prefix", "None"),
        (f"s3://{BUCKET}/tiny", "S3Object", "None"),
        (f"s3://{BUCKET}/tiny/config", "S3Object", "Gzip"),
    ],
)
def test_model_data_that_is_not_in_s3_is_refusal(
    account: Account, uri: str, kind: str, compression: str
) -> None:
    source = {"S3Uri": uri, "S3DataType": kind, "CompressionType": compression}
    expected = ("ValidationException", f"Could not find model data at {uri}.")
    data = {"S3DataSource": source}
    assert refusal(create_model, account=account, ModelDataSource=data) == expected
    more = [{"ChannelName": "drafter", **data}]
    found = refusal(create_model, account=account, AdditionalModelDataSources=more)
    assert found == expected


def scale(account: Account, name: str, **desired: Any) -> None:
    account.sagemaker.update_endpoint_weights_and_capacities(
        EndpointName=name, DesiredWeightsAndCapacities=[{"VariantName": "AllTraffic", **desired}]
    )


@pytest.mark.usefixtures("quota")
def test_an_update_retains_what_scaling_changed_if_asked_to(account: Account, live: str) -> None:
    scale(account, live, DesiredInstanceCount=2)
    (variant,) = account.wait_until_stable(live)["ProductionVariants"]
    assert (variant["CurrentInstanceCount"], variant["DesiredWeight"]) == (2, 1.0)
    account.config("next", live)
    for retained, count in ((True, 2), (False, 1)):
        account.sagemaker.update_endpoint(
            EndpointName=live, EndpointConfigName="next", RetainAllVariantProperties=retained
        )
        pending = account.describe(live)["PendingDeploymentSummary"]["ProductionVariants"][0]
        assert pending["DesiredInstanceCount"] == count
        (variant,) = account.wait_until_stable(live)["ProductionVariants"]
        assert variant["CurrentInstanceCount"] == variant["DesiredInstanceCount"] == count
    scale(account, live, DesiredInstanceCount=2, DesiredWeight=0.5)
    account.wait_until_stable(live)
    account.sagemaker.update_endpoint(
        EndpointName=live,
        EndpointConfigName="next",
        RetainAllVariantProperties=True,
        ExcludeRetainedVariantProperties=[{"VariantPropertyType": "DesiredInstanceCount"}],
    )
    (variant,) = account.wait_until_stable(live)["ProductionVariants"]
    assert (variant["CurrentInstanceCount"], variant["CurrentWeight"]) == (1, 0.5)


def test_scaling_respects_the_quota_and_the_variants(account: Account, live: str) -> None:
    code, message = refusal(scale, account=account, name=live, DesiredInstanceCount=3)
    assert code == "ResourceLimitExceeded"
    assert "with current utilization of 1 Instances and a request delta of 2 Instances" in message
    call = account.sagemaker.update_endpoint_weights_and_capacities
    desired = [{"VariantName": "None", "DesiredInstanceCount": 1}]
    code, message = refusal(call, EndpointName=live, DesiredWeightsAndCapacities=desired)
    assert (code, "None" in message) == ("ValidationException", True)
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
    assert code == "ValidationException"
    assert "must be deregistered as scalable targets" in message
    scaling.deregister_scalable_target(**target)
    account.sagemaker.update_endpoint(**update)
    assert account.wait_until_stable(live)["EndpointConfigName"] == "smaller"
