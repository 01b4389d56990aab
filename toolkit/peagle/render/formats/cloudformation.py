"""The plan as a CloudFormation stack: Model, EndpointConfig, Endpoint.

Model and EndpointConfig get no names: a change of a configuration replaces it, so CloudFormation
creates the new one under a generated name and updates the endpoint to it.
"""

from __future__ import annotations

from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render.files import RenderedFile, readme, yaml_file
from peagle.render.requests import STACK_TAG, folders, owned_requests

TEMPLATE = "template.yaml"
FILES = (TEMPLATE, "README.md")

_OPENAI_URL = (
    "https://runtime.sagemaker.${AWS::Region}.${AWS::URLSuffix}"
    "/endpoints/${Endpoint.EndpointName}/openai/v1"
)

_STACK = {"Key": STACK_TAG, "Value": {"Ref": "AWS::StackName"}}


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    heading = f"{plan.pair} on {plan.instance_type}, from `peagle render cloudformation`"
    return (yaml_file(TEMPLATE, template(plan), heading), readme(plan, _HOW_TO))


def unsupported(plan: Plan) -> str:
    """A plan that mounts two S3 prefixes."""
    if all(mount.channel is None for mount in plan.mounts):
        return ""
    return (
        "AWS::SageMaker::Model has no AdditionalModelDataSources, which this plan needs for its "
        "drafter (target/ and drafter/ below one s3:// prefix need none)"
    )


def template(plan: Plan) -> dict[str, Any]:
    model, config, endpoint = (
        request.parameters | {"Tags": [*request.parameters["Tags"], _STACK]}
        for request in owned_requests(plan, "cloudformation")
    )
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"{plan.pair} served by vLLM {plan.runtime.vllm}",
        "Parameters": _parameters(plan),
        "Rules": _rules(plan),
        "Resources": {
            "Model": {
                "Type": "AWS::SageMaker::Model",
                "Properties": _without(_with_references(model), "ModelName"),
            },
            "EndpointConfig": {
                "Type": "AWS::SageMaker::EndpointConfig",
                "Properties": _config(config),
            },
            "Endpoint": {
                "Type": "AWS::SageMaker::Endpoint",
                "Properties": endpoint
                | {"EndpointConfigName": {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]}},
            },
        },
        "Outputs": _outputs(plan),
    }


def _parameters(plan: Plan) -> dict[str, Any]:
    role = {
        "Type": "String",
        "Description": "ARN of the role that SageMaker assumes to read the image and the weights",
        "AllowedPattern": r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-/]+",
    }
    bucket = {
        "Type": "String",
        "Description": "Bucket that holds the weights; README.md lists the prefixes",
        "AllowedPattern": r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]",
    }
    return {"ExecutionRoleArn": role} | ({"ModelBucket": bucket} if folders(plan) else {})


def _rules(plan: Plan) -> dict[str, Any]:
    """A stack in another region would fail after minutes: the image is in the plan's region."""
    assertion = {
        "Assert": {"Fn::Equals": [{"Ref": "AWS::Region"}, plan.region]},
        "AssertDescription": f"The plan is for {plan.region}",
    }
    return {"PlannedRegion": {"Assertions": [assertion]}}


def _config(config: dict[str, Any]) -> dict[str, Any]:
    (variant,) = config["ProductionVariants"]
    named = {**variant, "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]}}
    return _without(config, "EndpointConfigName") | {"ProductionVariants": [named]}


def _outputs(plan: Plan) -> dict[str, Any]:
    outputs: dict[str, Any] = {
        "EndpointName": {"Value": {"Fn::GetAtt": ["Endpoint", "EndpointName"]}},
        "OpenAIBaseURL": {
            "Description": "Base URL for OpenAI clients; README.md explains how to get a key",
            "Value": {"Fn::Sub": _OPENAI_URL},
        },
    }
    for folder in folders(plan):
        outputs[f"{folder.part.title()}Weights"] = {
            "Description": f"Must contain the files of {folder.described}",
            "Value": {"Fn::Sub": f"s3://{MODEL_BUCKET}/{folder.prefix}"},
        }
    return outputs


def _without(properties: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name != key}


def _with_references(value: Any) -> Any:
    """The plan's placeholders as references to the template's parameters."""
    if isinstance(value, dict):
        return {key: _with_references(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_references(item) for item in value]
    if value == EXECUTION_ROLE:
        return {"Ref": "ExecutionRoleArn"}
    if isinstance(value, str) and value.startswith(f"s3://{MODEL_BUCKET}/"):
        return {"Fn::Sub": value}
    return value


_HOW_TO = """\
# {name}: CloudFormation

`template.yaml` deploys {pair} on {count} {instance_type} in {region}{price}.
{upload}
```
aws cloudformation deploy --region {region} --stack-name {name} --template-file template.yaml \\
  --parameter-overrides ExecutionRoleArn=ROLE_ARN{bucket_parameter}
```

The endpoint takes up to {minutes} minutes to start. Remove everything with
`aws cloudformation delete-stack --region {region} --stack-name {name}`.
{calling}{proving}"""
