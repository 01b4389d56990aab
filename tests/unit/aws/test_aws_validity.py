"""Requests that break a limit of AWS's API models are reported."""

import copy
from typing import Any

import pytest

from peagle.request_validation import validate
from tests.unit.aws.cloud import ROLE
from tests.unit.aws.plans import IMAGE

S3 = {"S3Uri": "s3://models/pair/", "S3DataType": "S3Prefix", "CompressionType": "None"}
CONTAINER = {
    "Image": IMAGE,
    "Environment": {"SM_VLLM_MODEL": "a/target"},
    "ModelDataSource": {"S3DataSource": S3},
    "AdditionalModelDataSources": [{"ChannelName": "drafter", "S3DataSource": S3}],
}
VARIANT = {
    "VariantName": "AllTraffic",
    "ModelName": "pair-1",
    "InitialInstanceCount": 1,
    "InstanceType": "ml.g5.xlarge",
    "InferenceAmiVersion": "al2023-ami-sagemaker-inference-gpu-4-1",
    "ContainerStartupHealthCheckTimeoutInSeconds": 600,
}
GOOD: dict[str, dict[str, Any]] = {
    "create_model": {"ModelName": "pair-1", "ExecutionRoleArn": ROLE, "PrimaryContainer": CONTAINER,
     "Tags": [{"Key": "peagle:pair", "Value": "a/target+a/head"}]},
    "create_endpoint_config": {"EndpointConfigName": "pair-1", "ProductionVariants": [VARIANT]},
    "create_endpoint": {"EndpointName": "pair", "EndpointConfigName": "pair-1"},
    "update_endpoint": {
        "EndpointName": "pair",
        "EndpointConfigName": "pair-1",
        "DeploymentConfig": {
            "RollingUpdatePolicy": {
                "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 50},
                "WaitIntervalInSeconds": 60,
            }
        },
    },
}  # fmt: skip
ENV = "PrimaryContainer.Environment"
VAR = "ProductionVariants[0]"

BROKEN: list[tuple[str, str, Any, str, str]] = [
    # operation, where a value is put, the value, path and text of the problem
    ("create_model", "ModelNam", "x", "", 'Unknown parameter in input: "ModelNam"'),
    ("create_model", "ModelName", 7, "", "Invalid type for parameter ModelName"),
    ("create_model", "Tags", [{"Key": "a"}], "", 'Missing required parameter in Tags[0]: "Value"'),
    ("create_model", "ModelName", "under_score", "ModelName", "does not match"),
    ("create_model", "ModelName", "x" * 64, "ModelName", "64 characters; allowed: at most 63"),
    ("create_model", ENV, {f"K{n}": "" for n in range(101)}, ENV, "101 entries; allowed: at most"),
    ("create_model", ENV, {"K": "v" * 1025}, f"{ENV}.K", "1,025 characters"),
    ("create_model", ENV, {"1K": "v"}, f"{ENV}.1K (the name)", "pattern"),
    ("create_endpoint_config", f"{VAR}.InstanceType", "ml.g5.xlrge", f"{VAR}.InstanceType",
     "allowed values"),
    ("create_endpoint_config", f"{VAR}.ContainerStartupHealthCheckTimeoutInSeconds", 7200,
     f"{VAR}.ContainerStartupHealthCheckTimeoutInSeconds", "is 7200; allowed: at most 3600"),
    ("create_endpoint_config", f"{VAR}.ModelDataDownloadTimeoutInSeconds", 59,
     f"{VAR}.ModelDataDownloadTimeoutInSeconds", "at least 60"),
]  # fmt: skip


def put(document: Any, path: str, value: Any) -> Any:
    """A copy of ``document`` with ``value`` at ``path``."""
    changed = copy.deepcopy(document)
    *steps, last = path.replace("[0]", ".0").split(".")
    place = changed
    for step in steps:
        place = place[int(step)] if isinstance(place, list) else place[step]
    place[int(last) if isinstance(place, list) else last] = value
    return changed


@pytest.mark.parametrize("operation", GOOD)
def test_a_valid_request_passes(operation: str) -> None:
    assert validate("sagemaker", operation, GOOD[operation], ()) == ()


@pytest.mark.parametrize(
    ("operation", "place", "value", "path", "text"),
    BROKEN,
    ids=[f"{n}-{broken[3]}" for n, broken in enumerate(BROKEN)],
)
def test_an_invalid_value_is_reported(
    operation: str, place: str, value: Any, path: str, text: str
) -> None:
    problems = validate("sagemaker", operation, put(GOOD[operation], place, value), ())
    assert any(line.startswith(f"{path}: " if path else text) and text in line for line in problems)
