"""An account with one deployment, and other answers of AWS, as valid inputs."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from tests.fuzz.parsers.commands import CONTAINER, CREATE_CONFIG, CREATE_MODEL
from tests.fuzz.parsers.examples import ENVIRONMENT

REGION = "us-east-1"
ARN = f"arn:aws:sagemaker:{REGION}:123456789012"
NOW = datetime(2026, 11, 1, tzinfo=UTC)
TAGS = {
    "peagle:deployment": "mine", "peagle:id": "a" * 32, "peagle:pair": "tiny",
    "peagle:revision": "0a1b2c3d", "peagle:plan": "0a1b2c3d", "peagle:owner": "terraform",
    "peagle:proof": "revision=0a1b2c3d passed=yes length=3.41 drafts=220 floor=2.00",
    "peagle:previous": "revision=ffffffff passed=no drafts=1",
}  # fmt: skip
LISTED = [
    {"ResourceARN": f"{ARN}:{kind}/mine",
     "Tags": [{"Key": key, "Value": value} for key, value in TAGS.items()]}
    for kind in ("endpoint", "endpoint-config", "model")
]  # fmt: skip
ACCOUNT: dict[str, Any] = {
    "get_resources": LISTED,
    "list_tags": LISTED[0]["Tags"],
    "describe_endpoint": {
        "EndpointName": "mine",
        "EndpointArn": f"{ARN}:endpoint/mine",
        "EndpointStatus": "InService",
        "EndpointConfigName": "mine",
        "FailureReason": "",
        "ProductionVariants": [
            {"VariantName": "v", "CurrentInstanceCount": 1, "DesiredInstanceCount": 1}
        ],
        "PendingDeploymentSummary": {"EndpointConfigName": "mine"},
    },
    "describe_endpoint_config": {
        **dict(CREATE_CONFIG),
        "EndpointConfigName": "mine",
        "EndpointConfigArn": f"{ARN}:endpoint-config/mine",
    },
    "describe_model": {
        **CREATE_MODEL,
        "ModelName": "mine",
        "ModelArn": f"{ARN}:model/mine",
        "PrimaryContainer": {
            **CONTAINER,
            "Environment": ENVIRONMENT,
            "AdditionalModelDataSources": [
                {
                    "ChannelName": "drafter",
                    "S3DataSource": {
                        "S3Uri": "s3://bucket/peagle/deploy/x/",
                        "S3DataType": "S3Prefix",
                        "CompressionType": "None",
                    },
                }
            ],
        },
    },
    "list_objects_v2": [{"Key": "peagle/deploy/x/config.json", "Size": 3}],
    "list_endpoints": [{"EndpointName": "mine", "EndpointStatus": "InService"}],
}
KEPT = frozenset({"ResourceARN", "EndpointArn", "EndpointConfigArn", "ModelArn", "Key"})
QUOTA = {"QuotaName": "ml.g6.xlarge for endpoint usage", "QuotaCode": "L-1", "Value": 2.0}
PRODUCT = {
    "product": {"attributes": {"component": "Hosting", "instanceName": "ml.g6.xlarge",
                               "regionCode": REGION, "usagetype": "Host:ml.g6.xlarge"}},
    "terms": {"OnDemand": {"a": {"priceDimensions": {"b": {"pricePerUnit": {"USD": "1.25"}}}}}},
}  # fmt: skip
ROLE = {
    "RoleName": "peagle",
    "Arn": "arn:aws:iam::123456789012:role/peagle",
    "AssumeRolePolicyDocument": {
        "Statement": [
            {
                "Effect": "Allow",
                "Action": ["sts:AssumeRole"],
                "Principal": {"Service": ["sagemaker.amazonaws.com"]},
                "Condition": {"StringEquals": {"aws:SourceAccount": ["123456789012"]}},
            }
        ]
    },
}
IMAGES = {"inference": {"versions": {"0.28.0": {
    "container_version": {"gpu": "cu130-ubuntu22.04-sagemaker"}, "py_versions": ["py312"],
    "tag_prefix": "0.28.0", "repository": "vllm", "registries": {REGION: "763104351884"},
}}}}  # fmt: skip
BUILD = {
    "builds": [{"buildStatus": "FAILED", "currentPhase": "BUILD",
                "logs": {"groupName": "g", "streamName": "s"}}],
    "events": [{"message": "ERROR: no"}, {"message": "\x1b[31mstep 1\x1b[0m\r\n"}],
}  # fmt: skip
LOGIN = base64.b64encode(b"AWS:password").decode()
CODES = ("ModelError", "ValidationException", "AccessDeniedException", "ResourceLimitExceeded",
         "ThrottlingException", "ExpiredToken", "ModelStreamError", "NoSuchKey", "x")  # fmt: skip
MESSAGES = (
    "The account-level service limit 'ml.g6.xlarge for endpoint usage' is 0 Instances",
    "User: x is not authorized to perform: iam:PassRole on resource: y", "Could not find endpoint",
    "Value at 'a' failed to satisfy constraint: enum value set: [" + ", ".join(["ml.x"] * 99) + "]",
)  # fmt: skip
