"""Each format as one description of the endpoint that it creates."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from peagle.data import data_folder
from peagle.planning import Plan
from peagle.render import render, requests
from peagle.render.requests import OWNER_TAG, STACK_TAG, VARIANT
from peagle.render.resources import (
    policy_parameters,
    register_parameters,
    wake_alarm,
    wake_policy_parameters,
)
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


def scaling_requests(plan: Plan, variant: str) -> dict[str, Any]:
    """The requests by their operation; empty without scaling. With a scale to zero, also those of
    the policy that wakes, and of its alarm, which lacks the policy's ARN."""
    scaling = plan.scaling
    if scaling is None:
        return {}
    calls = {
        "register_scalable_target": register_parameters(plan.name, variant, scaling),
        "put_scaling_policy": policy_parameters(plan.name, variant, scaling),
    }
    if scaling.scales_to_zero:
        calls["wake_up_policy"] = wake_policy_parameters(plan.name, variant, scaling)
        calls["wake_up_alarm"] = wake_alarm(plan.name, "${ScalingPolicyArn}", plan.company.tag_list)
    return calls


def from_requests(plan: Plan) -> Described:
    """From the plan's own requests."""
    filled = json.loads(
        json.dumps([request.parameters for request in requests(plan)])
        .replace("${ExecutionRoleArn}", ROLE)
        .replace("${ModelBucket}", BUCKET)
    )
    both = scaling_requests(plan, VARIANT).values()
    model, config, endpoint = filled
    return from_api(model, config, endpoint, {key: part[key] for part in both for key in part})


def from_cloudformation(plan: Plan) -> Described:
    """From the stack that the template makes without parameters but those of the account."""
    (template,) = [f for f in render("cloudformation", plan, CATALOG) if f.path == "template.yaml"]
    return from_stack(stack_of(yaml.safe_load(template.content)))


def from_stack(resources: dict[str, Any]) -> Described:
    """From the resources of a stack."""
    by_type = {each["Type"]: each["Properties"] for each in resources.values()}
    model, config, endpoint = (by_type[f"AWS::SageMaker::{kind}"] for kind in _KINDS)
    scaling: dict[str, Any] = {}
    for kind in ("ScalableTarget", "ScalingPolicy"):
        scaling |= by_type.get(f"AWS::ApplicationAutoScaling::{kind}", {})
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
        mounts={mount["channel"]: mount["uri"] for mount in model["data"]},
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
    by_type = {resource["type"]: resource["values"] for resource in resources}
    model, endpoint = by_type["aws_sagemaker_model"], by_type["aws_sagemaker_endpoint"]
    config = by_type["aws_sagemaker_endpoint_configuration"]
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
