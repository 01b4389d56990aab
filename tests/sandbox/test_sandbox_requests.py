"""Validation and descriptions of SageMaker's calls in the sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.sandbox.sandboxes import IMAGE, ROLE, Account, refusal

pytestmark = pytest.mark.sandbox

TARGET = {
    "ServiceNamespace": "sagemaker",
    "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    "ResourceId": "endpoint/e/variant/v",
}


def refused(call: Any, **parameters: Any) -> str:
    code, message = refusal(call, **parameters)
    assert code == "ValidationException"
    return message


@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        (
            {"InstanceType": "ml.bogus"},
            "Value 'ml.bogus' at 'productionVariants.1.member.instanceType' failed to satisfy "
            "constraint: Member must satisfy enum value set: [ml.",
        ),
        ({"VariantName": "under_score"}, "satisfy regular expression pattern: "),
        (
            {"ContainerStartupHealthCheckTimeoutInSeconds": 7200},
            "containerStartupHealthCheckTimeoutInSeconds' failed to satisfy constraint: "
            "Member must have value less than or equal to 3600",
        ),
        ({"RoutingConfig": {"RoutingStrategy": "KV"}}, "routingConfig.routingStrategy'"),
    ],
)
def test_an_invalid_variant_is_refused(
    account: Account, variant: dict[str, Any], expected: str
) -> None:
    message = refused(account.config, name="bounds", model="none", **variant)
    assert message.startswith("1 validation error detected: ")
    assert expected in message


def test_models_and_configurations_are_described_as_created(account: Account) -> None:
    model: dict[str, Any] = {
        "ModelName": "given",
        "ExecutionRoleArn": ROLE,
        "EnableNetworkIsolation": True,
        "PrimaryContainer": {"Image": IMAGE, "Environment": {"A": 'ü "%s" \n'}},
    }
    config: dict[str, Any] = {
        "EndpointConfigName": "given",
        "ProductionVariants": [
            {
                "VariantName": "v",
                "ModelName": "given",
                "InitialInstanceCount": 1,
                "InitialVariantWeight": 0.5,
                "InstanceType": "ml.g6e.2xlarge",
                "InferenceAmiVersion": "al2023-ami-sagemaker-inference-gpu-4-1",
                "ContainerStartupHealthCheckTimeoutInSeconds": 900,
                "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
            }
        ],
        "ExecutionRoleArn": ROLE,
        "EnableNetworkIsolation": False,
        "MetricsConfig": {"EnableEnhancedMetrics": True},
    }
    account.sagemaker.create_model(**model)
    account.sagemaker.create_endpoint_config(**config)
    found = account.sagemaker.describe_model(ModelName="given")
    assert {key: found[key] for key in found if key in model} == model
    assert set(found) - set(model) == {"ModelArn", "CreationTime", "ResponseMetadata"}
    found = account.sagemaker.describe_endpoint_config(EndpointConfigName="given")
    assert {key: found[key] for key in found if key in config} == config
    assert set(found) - set(config) == {"EndpointConfigArn", "CreationTime", "ResponseMetadata"}


def test_tags_of_all_resources_can_be_listed_and_changed(account: Account, live: str) -> None:
    client = account.sagemaker
    arns = [
        client.describe_model(ModelName=live)["ModelArn"],
        client.describe_endpoint_config(EndpointConfigName=live)["EndpointConfigArn"],
        account.describe(live)["EndpointArn"],
    ]
    for arn in arns:
        for value in ("tagged", "new"):
            tags = [{"Key": "peagle:deployment", "Value": value}]
            client.add_tags(ResourceArn=arn, Tags=tags)
            assert client.list_tags(ResourceArn=arn)["Tags"] == tags
        client.delete_tags(ResourceArn=arn, TagKeys=["peagle:deployment"])
        assert client.list_tags(ResourceArn=arn)["Tags"] == []
    assert "Could not find" in refused(client.list_tags, ResourceArn=f"{arns[2]}s")


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "code"),
    [
        ("pricing", "describe_services", {}, "UnknownOperationException"),
        ("cloudwatch", "list_managed_insight_rules", {"ResourceARN": "a"}, "UnknownOp"),
        ("sts", "decode_authorization_message", {"EncodedMessage": "x"}, "InvalidAction"),
        ("bedrock", "list_foundation_models", {}, "UnknownOperationException"),
    ],
)
def test_an_operation_that_the_sandbox_lacks_is_an_error_of_aws(
    account: Account, service: str, operation: str, parameters: dict[str, Any], code: str
) -> None:
    with pytest.raises(ClientError, match="The sandbox does not have the operation") as raised:
        getattr(account.client(service), operation)(**parameters)
    assert raised.value.response["Error"]["Code"].startswith(code)
