"""Each format as one description of the endpoint that it creates."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from peagle.data import data_folder
from peagle.planning import Plan
from peagle.render import render, requests
from peagle.render.requests import OWNER_TAG, STACK_TAG, VARIANT
from peagle.render.scaling import scaling_requests
from tests.iac.stack import stack_of
from tests.unit.rendering.plans import BUCKET, CATALOG, ROLE

MODULE = data_folder("infra/terraform")


@dataclass(frozen=True)
class Described:
    """An endpoint, in any format. Channel ``None`` is the model itself."""

    endpoint: str
    role: str
    image: str
    environment: dict[str, str]
    mounts: dict[str | None, str]
    variant: dict[str, Any]
    tags: dict[str, str] = field(default_factory=dict)
    scaling: dict[str, Any] = field(default_factory=dict)
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    isolated: bool = False
    kms_key: str | None = None


def from_api(
    model: dict[str, Any],
    config: dict[str, Any],
    endpoint: dict[str, Any],
    scaling: dict[str, Any] | None = None,
) -> Described:
    """From the parameters of the three calls, and of those of Application Auto Scaling."""
    container, (variant,) = model["PrimaryContainer"], config["ProductionVariants"]
    sources = (
        [{"ChannelName": None, **container["ModelDataSource"]}]
        if ("ModelDataSource" in container)
        else []
    )
    sources += container.get("AdditionalModelDataSources", [])
    return Described(
        endpoint=endpoint["EndpointName"],
        role=model["ExecutionRoleArn"],
        image=container["Image"],
        environment=container["Environment"],
        mounts={s["ChannelName"]: s["S3DataSource"]["S3Uri"] for s in sources},
        variant={key: value for key, value in variant.items() if key != "ModelName"},
        tags=_without_owner({tag["Key"]: tag["Value"] for tag in endpoint["Tags"]}),
        scaling=scaling or {},
        subnets=tuple(model.get("VpcConfig", {}).get("Subnets", ())),
        security_groups=tuple(model.get("VpcConfig", {}).get("SecurityGroupIds", ())),
        isolated=model.get("EnableNetworkIsolation", False),
        kms_key=config.get("KmsKeyId"),
    )


def _without_owner(tags: dict[str, str]) -> dict[str, str]:
    """The tags that all formats share; the golden files have those of the owner."""
    return {key: value for key, value in tags.items() if key not in (OWNER_TAG, STACK_TAG)}


def from_requests(plan: Plan) -> Described:
    """From the plan's own requests."""
    filled = json.loads(
        json.dumps([request.parameters for request in requests(plan)])
        .replace("${ExecutionRoleArn}", ROLE)
        .replace("${ModelBucket}", BUCKET)
    )
    both = scaling_requests(plan, VARIANT).values()
    model, config, endpoint = filled
    return from_api(model, config, endpoint, {key: one[key] for one in both for key in one})


def from_cloudformation(plan: Plan) -> Described:
    """From the stack that the template makes without parameters but those of the account."""
    (template,) = [f for f in render("cloudformation", plan, CATALOG) if f.path == "template.yaml"]
    return from_stack(stack_of(yaml.safe_load(template.content)))


def from_stack(resources: dict[str, Any]) -> Described:
    """From the resources of a stack."""
    found = {one["Type"]: one["Properties"] for one in resources.values()}
    model, config, endpoint = (found[f"AWS::SageMaker::{kind}"] for kind in _KINDS)
    scaling: dict[str, Any] = {}
    for kind in ("ScalableTarget", "ScalingPolicy"):
        scaling |= found.get(f"AWS::ApplicationAutoScaling::{kind}", {})
    if scaling:
        scaling.pop("ScalingTargetId")
        scaling["ResourceId"] = f"endpoint/{endpoint['EndpointName']}/variant/{VARIANT}"
    assert endpoint.get("RetainAllVariantProperties", False) is bool(scaling)
    return from_api(model, config, endpoint, scaling)


_KINDS = ("Model", "EndpointConfig", "Endpoint")


def from_terraform(plan: Plan) -> Described:
    """From the values that the module reads; what the module makes of them is tested where
    Terraform is."""
    (file,) = [f for f in render("terraform", plan, CATALOG) if f.path == "values.json"]
    values = json.loads(file.content.decode().replace("${ModelBucket}", BUCKET))
    model, instances = values["model"], values["instances"]
    variant = {
        "VariantName": VARIANT,
        "InstanceType": instances["type"],
        "InitialInstanceCount": instances["count"],
        "InitialVariantWeight": 1.0,
        "InferenceAmiVersion": instances["ami"],
        "ContainerStartupHealthCheckTimeoutInSeconds": instances["startup_timeout_seconds"],
        "ModelDataDownloadTimeoutInSeconds": instances["download_timeout_seconds"],
        "RoutingConfig": (strategy := instances["routing_strategy"])
        and {"RoutingStrategy": strategy},
    }
    return Described(
        endpoint=values["name"],
        role=ROLE,
        image=model["image"],
        environment=model["environment"],
        mounts={one["channel"]: one["uri"] for one in model["data"]},
        variant={key: value for key, value in variant.items() if value is not None},
        tags=_without_owner(values["tags"]),
        scaling=_scaling_of_values(values["scaling"], values["name"]),
        subnets=tuple(model["subnets"]),
        security_groups=tuple(model["security_group_ids"]),
        isolated=model["network_isolation"],
        kms_key=values["kms_key_arn"],
    )


_VARIANT = {
    "VariantName": "variant_name",
    "InitialInstanceCount": "initial_instance_count",
    "InstanceType": "instance_type",
    "InitialVariantWeight": "initial_variant_weight",
    "ModelDataDownloadTimeoutInSeconds": "model_data_download_timeout_in_seconds",
    "ContainerStartupHealthCheckTimeoutInSeconds": (
        "container_startup_health_check_timeout_in_seconds"
    ),
}
"""The API's names -> the provider's."""


def from_planned(resources: list[dict[str, Any]]) -> Described:
    """From the resources that ``terraform plan`` plans for one endpoint."""
    found = {one["type"]: one["values"] for one in resources}
    model, endpoint = found["aws_sagemaker_model"], found["aws_sagemaker_endpoint"]
    config = found["aws_sagemaker_endpoint_configuration"]
    (container,), (variant,) = model["primary_container"], config["production_variants"]
    described = {key: variant[name] for key, name in _VARIANT.items() if variant[name] is not None}
    for routing in variant["routing_config"]:
        described["RoutingConfig"] = {"RoutingStrategy": routing["routing_strategy"]}
    (vpc,) = model["vpc_config"] or [{}]
    sources = container.get("model_data_source", [])
    return Described(
        endpoint=endpoint["name"],
        role=model["execution_role_arn"],
        image=container["image"],
        environment=container["environment"],
        mounts=dict.fromkeys([None], sources[0]["s3_data_source"][0]["s3_uri"]) if sources else {},
        variant=described,
        tags=_without_owner(model["tags"]),
        subnets=tuple(vpc.get("subnets", ())),
        security_groups=tuple(vpc.get("security_group_ids", ())),
        isolated=model["enable_network_isolation"],
        kms_key=config["kms_key_arn"],
    )


def _scaling_of_values(scaling: dict[str, Any] | None, endpoint: str) -> dict[str, Any]:
    """The parameters of Application Auto Scaling, with the constants of ``scaling.tf``."""
    if scaling is None:
        return {}
    text = (MODULE / "scaling.tf").read_text()
    constants = dict(re.findall(r'(\w+) += "([^"$]+)"', text))
    return {
        "ServiceNamespace": constants["service_namespace"],
        "ResourceId": f"endpoint/{endpoint}/variant/{VARIANT}",
        "ScalableDimension": constants["scalable_dimension"],
        "MinCapacity": scaling["min_instances"],
        "MaxCapacity": scaling["max_instances"],
        "PolicyName": constants["name"],
        "PolicyType": constants["policy_type"],
        "TargetTrackingScalingPolicyConfiguration": {
            "TargetValue": scaling["target_concurrency"],
            "PredefinedMetricSpecification": {
                "PredefinedMetricType": constants["predefined_metric_type"]
            },
            "ScaleInCooldown": scaling["scale_in_cooldown_seconds"],
            "ScaleOutCooldown": scaling["scale_out_cooldown_seconds"],
        },
    }


_FAKE_BOTO3 = """\
import json, os, sys
from botocore.exceptions import ClientError, NoCredentialsError

class Client:
    def __init__(self, service):
        self.service, self.there = service, {}
        if os.environ["FAKE_THERE"]:
            self.there["endpoint", os.environ["FAKE_THERE"]] = {
                "EndpointConfigName": "earlier", "EndpointArn": "arn"}

    def upload_file(self, path, bucket, key, ExtraArgs):
        record("upload_file", dict(path=path, bucket=bucket, key=key, **ExtraArgs))

    def get_paginator(self, operation):
        return self

    def paginate(self, **parameters):
        return []

    def head_object(self, **parameters):
        raise ClientError({"Error": {"Code": "404", "Message": "not found"}}, "head_object")

    def __getattr__(self, operation):
        def call(**parameters):
            if os.environ["FAKE_STATUS"] == "no credentials":
                raise NoCredentialsError()
            if os.environ["FAKE_STATUS"] == "denied" and operation.startswith("create_"):
                denied = {"Error": {"Code": "AccessDeniedException", "Message": "you\\nmay not"}}
                raise ClientError(denied, operation)
            name = [v for k, v in parameters.items() if k.endswith("Name")] or [""]
            name = name[0]
            if operation == "describe_scalable_targets":
                return {"ScalableTargets": [{}]}
            if operation.startswith("describe_"):
                kind = operation.removeprefix("describe_")
                if (kind, name) not in self.there:
                    error = {"Error": {"Code": "ValidationException", "Message": "not found"}}
                    raise ClientError(error, operation)
                found = self.there[kind, name]
                return {**found, "EndpointStatus": os.environ["FAKE_STATUS"],
                        "FailureReason": "it broke"}
            if operation.startswith(("get_", "delete_")):
                error = {"Error": {"Code": "ResourceNotFoundException", "Message": "not found"}}
                raise ClientError(error, operation)
            record(operation, parameters)
            verb, _, kind = operation.partition("_")
            if verb == "create":
                self.there[kind, name] = parameters
            return {}
        return call

class Session:
    def __init__(self, region_name=None):
        record("session", {"region": region_name})

    def client(self, service):
        return CLIENTS.setdefault(service, Client(service))

CLIENTS = {}

def record(operation, parameters):
    with open(os.environ["FAKE_CALLS"], "a") as calls:
        calls.write(json.dumps([operation, parameters]) + "\\n")
"""


def run_script(
    plan: Plan, folder: Path, *arguments: str, status: str = "InService", there: str = ""
) -> tuple[subprocess.CompletedProcess[str], list[tuple[str, dict[str, Any]]]]:
    """Run ``deploy.py`` with a boto3 that only records its calls.

    ``there`` is the name of an endpoint that exists already.
    """
    (deploy,) = [f for f in render("boto3", plan, CATALOG) if f.path == "deploy.py"]
    (folder / "deploy.py").write_bytes(deploy.content)
    (folder / "boto3").mkdir(exist_ok=True)
    (folder / "boto3" / "__init__.py").write_text(_FAKE_BOTO3)
    (folder / "boto3" / "exceptions.py").write_text("class Boto3Error(Exception): pass\n")
    calls = folder / "calls.jsonl"
    calls.write_text("")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(folder / "deploy.py"), *arguments],
        env={**os.environ, "FAKE_CALLS": str(calls), "FAKE_STATUS": status, "FAKE_THERE": there},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done, [tuple(json.loads(line)) for line in calls.read_text().splitlines()]


def from_script(plan: Plan, folder: Path) -> Described:
    """From the calls that ``deploy.py`` makes."""
    options = ["--role", ROLE]
    uploads = [mount for mount in plan.mounts if "${ModelBucket}" in mount.s3_uri]
    if uploads:
        options += ["--bucket", BUCKET]
    for part in ("target", "drafter"):
        weights = plan.target.weights if part == "target" else None
        if part == "drafter" and plan.drafter is not None:
            weights = plan.drafter.weights
        if weights is not None and weights.kind == "directory":
            (folder / part).mkdir()
            (folder / part / "config.json").write_text("{}")
            options += [f"--{part}", str(folder / part)]
    done, calls = run_script(plan, folder, *options)
    assert done.returncode == 0, done.stderr
    made = dict(calls)
    scaling = {**made.get("register_scalable_target", {}), **made.get("put_scaling_policy", {})}
    model, config = made["create_model"], made["create_endpoint_config"]
    return from_api(model, config, made["create_endpoint"], scaling)
