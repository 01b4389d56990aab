"""The plan as Terraform in JSON syntax: model, endpoint configuration, endpoint.

Names of model and configuration contain a hash of their contents, so a change creates new ones,
updates the endpoint, and then removes the old ones.
"""

from __future__ import annotations

from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.files import RenderedFile, json_file, readme
from peagle.render.requests import PROOF_TAG, folders, openai_base_url, owned_requests

MAIN = "main.tf.json"
FILES = (MAIN, "README.md")

PROVIDER = ">= 6.0"
PROVIDER_WITH_ADDITIONAL_SOURCES = ">= 6.25"
"""Versions of hashicorp/aws: the first that accepts the AMI of CUDA 13 is a 6.x, and 6.25 is the
first known to have ``additional_model_data_source``."""

_REPLACED_BEFORE_REMOVED = {"create_before_destroy": True}

_KEEPS_THE_PROOF = {"ignore_changes": [f'tags["{PROOF_TAG}"]']}
"""`peagle prove` records the proof in this tag of the endpoint."""


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    return (json_file(MAIN, configuration(plan)), readme(plan, _HOW_TO))


def configuration(plan: Plan) -> dict[str, Any]:
    model, config, endpoint = (request.parameters for request in owned_requests(plan, "terraform"))
    tags = {tag["Key"]: tag["Value"] for tag in endpoint["Tags"]}
    additional = any(mount.channel is not None for mount in plan.mounts)
    provider = PROVIDER_WITH_ADDITIONAL_SOURCES if additional else PROVIDER
    return {
        "//": f"{plan.pair} on {plan.instance_type}, from `peagle render terraform`",
        "terraform": {
            "required_version": ">= 1.5",
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": provider}},
        },
        "provider": {"aws": {"region": plan.region}},
        "variable": _variables(plan),
        "resource": {
            "aws_sagemaker_model": {"this": _model(model, tags)},
            "aws_sagemaker_endpoint_configuration": {"this": _config(config, tags)},
            "aws_sagemaker_endpoint": {
                "this": {
                    "name": endpoint["EndpointName"],
                    "endpoint_config_name": "${aws_sagemaker_endpoint_configuration.this.name}",
                    "tags": tags,
                    "lifecycle": _KEEPS_THE_PROOF,
                }
            },
        },
        "output": _outputs(plan),
    }


def _variables(plan: Plan) -> dict[str, Any]:
    role = {
        "type": "string",
        "description": "ARN of the role that SageMaker assumes to read the image and the weights",
    }
    bucket = {
        "type": "string",
        "description": "Bucket that holds the weights; README.md lists the prefixes",
    }
    return {"execution_role_arn": role} | ({"model_bucket": bucket} if folders(plan) else {})


def _model(model: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
    container = model["PrimaryContainer"]
    primary: dict[str, Any] = {
        "image": literal(container["Image"]),
        "environment": {name: literal(text) for name, text in container["Environment"].items()},
    }
    if "ModelDataSource" in container:
        primary["model_data_source"] = [_source(container["ModelDataSource"])]
    if "AdditionalModelDataSources" in container:
        primary["additional_model_data_source"] = [
            {"channel_name": source["ChannelName"], **_source(source)}
            for source in container["AdditionalModelDataSources"]
        ]
    return {
        "name": model["ModelName"],
        "execution_role_arn": _with_references(model["ExecutionRoleArn"]),
        "primary_container": [primary],
        "tags": tags,
        "lifecycle": _REPLACED_BEFORE_REMOVED,
    }


def _source(source: dict[str, Any]) -> dict[str, Any]:
    s3 = source["S3DataSource"]
    return {
        "s3_data_source": [
            {
                "s3_uri": _with_references(s3["S3Uri"]),
                "s3_data_type": s3["S3DataType"],
                "compression_type": s3["CompressionType"],
            }
        ]
    }


_VARIANT = {
    "VariantName": "variant_name",
    "InitialInstanceCount": "initial_instance_count",
    "InstanceType": "instance_type",
    "InitialVariantWeight": "initial_variant_weight",
    "ModelDataDownloadTimeoutInSeconds": "model_data_download_timeout_in_seconds",
    "ContainerStartupHealthCheckTimeoutInSeconds": (
        "container_startup_health_check_timeout_in_seconds"
    ),
    "InferenceAmiVersion": "inference_ami_version",
}
"""The API's names -> the provider's."""


def _config(config: dict[str, Any], tags: dict[str, str]) -> dict[str, Any]:
    (variant,) = config["ProductionVariants"]
    rendered: dict[str, Any] = {"model_name": "${aws_sagemaker_model.this.name}"}
    rendered |= {name: variant[key] for key, name in _VARIANT.items() if key in variant}
    if "RoutingConfig" in variant:
        strategy = variant["RoutingConfig"]["RoutingStrategy"]
        rendered["routing_config"] = [{"routing_strategy": strategy}]
    return {
        "name": config["EndpointConfigName"],
        "production_variants": [rendered],
        "tags": tags,
        "lifecycle": _REPLACED_BEFORE_REMOVED,
    }


def _outputs(plan: Plan) -> dict[str, Any]:
    name = "${aws_sagemaker_endpoint.this.name}"
    url = openai_base_url(plan.region, name)
    outputs: dict[str, Any] = {"endpoint_name": {"value": name}, "openai_base_url": {"value": url}}
    for folder in folders(plan):
        outputs[f"{folder.part}_weights"] = {
            "value": f"s3://${{var.model_bucket}}/{folder.prefix}",
            "description": literal(f"Must contain the files of {folder.described}"),
        }
    return outputs


def _with_references(text: str) -> str:
    """The plan's placeholders as references to variables; other text as a literal."""
    if text == EXECUTION_ROLE:
        return "${var.execution_role_arn}"
    bucket = f"s3://{MODEL_BUCKET}/"
    if text.startswith(bucket):
        return "s3://${var.model_bucket}/" + literal(text.removeprefix(bucket))
    return literal(text)


def literal(text: str) -> str:
    """``text`` with ``${`` and ``%{`` escaped, which Terraform reads as templates."""
    return text.replace("${", "$${").replace("%{", "%%{")


_HOW_TO = """\
# {name}: Terraform

`main.tf.json` deploys {pair} on {count} {instance_type} in {region}{price}.
{upload}
```
terraform init
terraform apply -var execution_role_arn=ROLE_ARN{bucket_variable}
```

The endpoint takes up to {minutes} minutes to start. Remove everything with `terraform destroy`.
{calling}{proving}"""
