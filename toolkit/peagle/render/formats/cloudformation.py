"""The plan as a CloudFormation stack: Model, EndpointConfig, Endpoint, InferenceComponent.

Model and EndpointConfig get no names: a change of a configuration replaces it, so CloudFormation
creates the new one under a generated name and updates the endpoint to it. Without parameters, the
stack does what the plan says.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.limit import ends_after
from peagle.planning.plan import MODEL_BUCKET, Plan
from peagle.render.capture import not_in_templates
from peagle.render.components import component_path
from peagle.render.dashboard import keeps_log
from peagle.render.files import RenderedFile, readme, yaml_file
from peagle.render.limit import ENDS_TAG, cloudformation_end
from peagle.render.requests import STACK_TAG, folders, owned_requests
from peagle.render.stack_observability import dashboard_url, observability_resources, rollout_config
from peagle.render.stack_parameters import interface, parameters
from peagle.render.stack_references import (
    NAME,
    OBSERVES,
    SEVERAL,
    conditions,
    either,
    with_references,
)
from peagle.render.stack_scaling import retained, scaling_resources
from peagle.s3uri import S3Uri

TEMPLATE = "template.yaml"
FILES = (TEMPLATE, "README.md")

_OPENAI_URL = (
    "https://runtime.sagemaker.${AWS::Region}.${AWS::URLSuffix}"
    "/endpoints/${Endpoint.EndpointName}%s/openai/v1"
)

_STACK = {"Key": STACK_TAG, "Value": {"Ref": "AWS::StackName"}}


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    heading = f"{plan.pair} on {plan.instance_type}, from `peagle render cloudformation`"
    return (yaml_file(TEMPLATE, template(plan), heading), readme(plan, catalog, _HOW_TO))


def unsupported(plan: Plan) -> str:
    """A plan that mounts two S3 prefixes, a rule of a bucket that the stack does not own, and texts
    that CloudFormation would replace."""
    if any(mount.channel is not None for mount in plan.mounts):
        return (
            "AWS::SageMaker::Model has no AdditionalModelDataSources, which this plan needs for "
            "its drafter (target/ and drafter/ below one s3:// prefix need none)"
        )
    for request in owned_requests(plan, "cloudformation"):
        for place in _dynamic_references(request.parameters):
            return (
                f"CloudFormation replaces {_DYNAMIC}...}}}} in {place} by a secret or parameter, "
                "and no escape keeps it as text"
            )
    return not_in_templates(plan)


_DYNAMIC = "{{resolve:"
"""Begins a dynamic reference, which CloudFormation replaces in every text of a template."""


def _dynamic_references(value: Any, place: str = "") -> Iterator[str]:
    """The keys of the texts that contain a dynamic reference."""
    if isinstance(value, dict):
        for key, item in value.items():
            if _DYNAMIC in key:
                yield f"the name of a key of {place}"
            yield from _dynamic_references(item, key)
    elif isinstance(value, list):
        for item in value:
            yield from _dynamic_references(item, place)
    elif isinstance(value, str) and _DYNAMIC in value:
        yield place


def template(plan: Plan) -> dict[str, Any]:
    named = plan.model_copy(update={"name": NAME})
    resources: dict[str, Any] = with_references(_resources(named, plan))
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"{plan.pair} served by vLLM {plan.runtime.vllm}",
        "Metadata": interface(plan),
        "Parameters": parameters(plan),
        "Rules": _rules(plan),
        "Conditions": conditions(plan),
        "Resources": resources,
        "Outputs": with_references(_outputs(named)),
    }


def _resources(named: Plan, plan: Plan) -> dict[str, Any]:
    """The resources of ``named``, which is the plan with a placeholder as its name."""
    model, config, endpoint, *component = (
        request.parameters | {"Tags": [*request.parameters["Tags"], _STACK]}
        for request in owned_requests(named, "cloudformation")
    )
    limited = ends_after(plan) is not None
    schedules = ["Schedule", *(["CopiesSchedule"] if plan.copies else [])]
    before = [*(schedules if limited else []), *(["Log"] if keeps_log(plan) else [])]
    if limited:
        endpoint["Tags"].append({"Key": ENDS_TAG, "Value": {"Fn::Sub": "${EndsAt}Z"}})
    own = {"EndpointConfigName": {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]}}
    return {
        "Model": {
            "Type": "AWS::SageMaker::Model",
            **_skipped(plan),
            "Properties": _without(model, "ModelName"),
        },
        "EndpointConfig": {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": _config(plan, config),
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": endpoint
            | own
            | ({} if component else rollout_config(plan))
            | retained(plan),
        }
        | ({"DependsOn": before} if before else {}),
        **scaling_resources(named, [_STACK]),
        **(cloudformation_end(plan, NAME, model["Tags"]) if limited else {}),
        **observability_resources(named),
        **({"InferenceComponent": _component(plan, *component)} if component else {}),
    }


def _skipped(plan: Plan) -> dict[str, Any]:
    """The checks of checkov that do not hold for the model, with their reasons."""
    if plan.company.network_isolation:
        return {}
    reason = "Isolation is a choice of the plan: an engine that downloads weights needs the network"
    return {"Metadata": {"checkov": {"skip": [{"id": "CKV_AWS_370", "comment": reason}]}}}


def _rules(plan: Plan) -> dict[str, Any]:
    """A stack in another region would fail after minutes: the image is in the plan's region."""
    assertion = {
        "Assert": {"Fn::Equals": [{"Ref": "AWS::Region"}, plan.region]},
        "AssertDescription": f"The plan is for {plan.region}",
    }
    return {"PlannedRegion": {"Assertions": [assertion]}}


def _config(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    (variant,) = config["ProductionVariants"]
    own: dict[str, Any] = {"InitialInstanceCount": {"Ref": "InitialInstanceCount"}}
    if plan.copies is None:
        routing = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
        own["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
        own["RoutingConfig"] = either(SEVERAL, routing)
    else:
        bounds = {"MinInstanceCount": "MinInstances", "MaxInstanceCount": "MaxInstances"}
        references = {key: {"Ref": name} for key, name in bounds.items()}
        own["ManagedInstanceScaling"] = variant["ManagedInstanceScaling"] | references
    return _without(config, "EndpointConfigName") | {"ProductionVariants": [variant | own]}


def _component(plan: Plan, component: dict[str, Any]) -> dict[str, Any]:
    """The copies of the model, which the endpoint starts."""
    model = {"ModelName": {"Fn::GetAtt": ["Model", "ModelName"]}}
    own = {
        "EndpointName": {"Fn::GetAtt": ["Endpoint", "EndpointName"]},
        "Specification": component["Specification"] | model,
        "RuntimeConfig": {"CopyCount": {"Ref": "Copies"}},
    }
    properties = component | own | rollout_config(plan)
    return {"Type": "AWS::SageMaker::InferenceComponent", "Properties": properties}


def _outputs(plan: Plan) -> dict[str, Any]:
    outputs: dict[str, Any] = {
        "EndpointName": {"Value": {"Fn::GetAtt": ["Endpoint", "EndpointName"]}},
        "EndpointArn": {"Value": {"Ref": "Endpoint"}},
        "EndpointConfigName": {
            "Description": "The configuration that the endpoint serves",
            "Value": {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]},
        },
        "ModelName": {"Value": {"Fn::GetAtt": ["Model", "ModelName"]}},
        "OpenAIBaseURL": {
            "Description": "Base URL for OpenAI clients; README.md explains how to get a key",
            "Value": {"Fn::Sub": _OPENAI_URL % component_path(plan)},
        },
        "DashboardURL": {"Condition": OBSERVES, "Value": dashboard_url(plan)},
    }
    for folder in folders(plan):
        outputs[f"{folder.part.title()}Weights"] = {
            "Description": f"Must contain the files of {folder.described}",
            "Value": str(S3Uri(MODEL_BUCKET, folder.prefix)),
        }
    return outputs


def _without(properties: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in properties.items() if name != key}


_HOW_TO = """\
# {name}: CloudFormation

`template.yaml` deploys {pair} on {count} {instance_type} in {region}{price}.
{upload}
```
aws cloudformation deploy --region {region} --stack-name {name} --template-file template.yaml \\
  --parameter-overrides ExecutionRoleArn=ROLE_ARN{bucket_parameter}{end_parameter}
```
{ends}
Without other parameters the stack is the plan. `EndpointName` and `InitialInstanceCount` give it
another name and number of instances; `Scaling` and `Observability` (`true` or `false`) switch
scaling, alarms and dashboard on and off; alarms notify `AlarmTopicArn`. The template has them all.

The endpoint takes up to {minutes} minutes to start. Remove everything with
`aws cloudformation delete-stack --region {region} --stack-name {name}`.
{calling}{proving}"""
