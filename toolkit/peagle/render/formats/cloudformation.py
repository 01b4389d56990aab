"""The plan as a CloudFormation stack: Model, EndpointConfig, Endpoint, InferenceComponent, and the
scaling, alarms, dashboard, log and end that the plan has.

Model and EndpointConfig get no names: a change of a configuration replaces it, so CloudFormation
creates the new one under a generated name and updates the endpoint to it. Parameters are for what
differs between accounts; names and numbers are the plan's.
"""

from __future__ import annotations

import json
from typing import Any

import yaml

from peagle.catalog.schema import Catalog
from peagle.planning.company import role_settings
from peagle.planning.operation import alarm_kinds, ends_after
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.render import files
from peagle.render.alarms import alarms, log_of, metric_filters
from peagle.render.dashboard import (
    dashboard_name,
    dashboard_text,
    has_dashboard,
    log_retention_days,
)
from peagle.render.files import PlainDumper, RenderedFile, readme, text_file, yaml_text
from peagle.render.requests import (
    DEPLOYMENT_TAG,
    KEPT_COUNT,
    STACK_TAG,
    VARIANT,
    component_path,
    folders,
    owned_requests,
)
from peagle.render.resources import (
    END_POLICY,
    ENDS_TAG,
    deployment_config,
    not_in_templates,
    policy_parameters,
    register_parameters,
    role_policy,
    schedule,
    target_arn,
    trust_policy,
    wake_alarm,
    wake_policy_parameters,
)
from peagle.s3uri import S3Uri

TEMPLATE = "template.yaml"
FILES = (TEMPLATE, "README.md")

CONFIG_NAME = "PeagleEndpointConfigName"
"""Stands for the name of the endpoint configuration, which CloudFormation generates."""

_STACK = {"Key": STACK_TAG, "Value": {"Ref": "AWS::StackName"}}


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    heading = f"{plan.pair} on {plan.instance_type}, from `peagle render cloudformation`"
    text = yaml_text([template(plan)], [heading], PlainDumper)
    return (text_file(TEMPLATE, text), readme(plan, catalog, "cloudformation"))


def unsupported(plan: Plan) -> str:
    """A plan that mounts two S3 prefixes, a rule of a bucket that the stack does not own, and texts
    that CloudFormation would replace."""
    if any(mount.channel is not None for mount in plan.mounts):
        return (
            "AWS::SageMaker::Model has no AdditionalModelDataSources, which this plan needs for "
            "its drafter (target/ and drafter/ below one s3:// prefix need none)"
        )
    texts = json.dumps([request.parameters for request in owned_requests(plan, "cloudformation")])
    if "{{resolve:" in texts:
        return (
            "CloudFormation replaces {{resolve:...}} in a text by a secret or parameter, and no "
            "escape keeps it as text"
        )
    return not_in_templates(plan)


def template(plan: Plan) -> dict[str, Any]:
    """The template as plain data."""
    parts = yaml.safe_load(files.template("cloudformation.yaml"))
    resources: dict[str, Any] = _with_references(_resources(plan))
    conditions = _used(parts["Conditions"], resources)
    parameters = _used(parts["Parameters"], [resources, conditions])
    if "AlarmTopicArn" in parameters and plan.observe:
        parameters["AlarmTopicArn"]["Default"] = plan.observe.alarm_topic
    # A stack in another region would fail after minutes: the image is in the plan's region.
    region = {
        "Assert": {"Fn::Equals": [{"Ref": "AWS::Region"}, plan.region]},
        "AssertDescription": f"The plan is for {plan.region}",
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"{plan.pair} served by vLLM {plan.runtime.vllm}",
        "Parameters": parameters,
        "Rules": {"PlannedRegion": {"Assertions": [region]}},
        **({"Conditions": conditions} if conditions else {}),
        "Resources": resources,
        "Outputs": _with_references(_outputs(plan, parts["Outputs"])),
    }


def _used(parts: dict[str, Any], document: Any) -> dict[str, Any]:
    """The parameters or conditions to which the document refers."""
    text = json.dumps(document)
    return {
        name: part for name, part in parts.items() if f'"{name}"' in text or f"${{{name}}}" in text
    }


def _with_references(value: Any) -> Any:
    """``value`` with references in place of ``CONFIG_NAME`` and the plan's placeholders."""
    if isinstance(value, list):
        return [_with_references(item) for item in value]
    if isinstance(value, dict):
        return {key: _with_references(item) for key, item in value.items()}
    if value == CONFIG_NAME:
        return {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]}
    if value == EXECUTION_ROLE:
        return {"Ref": "ExecutionRoleArn"}
    if isinstance(value, str) and value.startswith(str(S3Uri(MODEL_BUCKET))):
        return {"Fn::Sub": value}
    return value


def _resource(kind: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def _resources(plan: Plan) -> dict[str, Any]:
    model, config, endpoint, *components = (
        request.parameters | {"Tags": [*request.parameters["Tags"], _STACK]}
        for request in owned_requests(plan, "cloudformation")
    )
    (variant,) = config["ProductionVariants"]
    if plan.copies is None:
        variant["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
    before = ["Log"] if log_retention_days(plan) is not None else []
    ends = ends_after(plan) is not None
    if ends:
        before = ["Schedule", *(["CopiesSchedule"] if plan.copies else []), *before]
        endpoint["Tags"].append({"Key": ENDS_TAG, "Value": {"Fn::Sub": "${EndsAt}Z"}})
    endpoint["EndpointConfigName"] = {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]}
    rollout = deployment_config(plan)
    if rollout is not None and plan.rollout is not None:
        # References to the alarms, so that they are made first.
        names = [{"AlarmName": {"Ref": f"{kind.title()}Alarm"}} for kind in plan.rollout.alarms]
        updated = components[0] if components else endpoint
        updated["DeploymentConfig"] = rollout | {"AutoRollbackConfiguration": {"Alarms": names}}
    if plan.scaling and not components:
        endpoint |= KEPT_COUNT
    del model["ModelName"], config["EndpointConfigName"]
    checked: dict[str, Any] = {}
    if not plan.company.network_isolation:
        why = (
            "Isolation is a choice of the plan: an engine that downloads weights needs the network"
        )
        checked["Metadata"] = {"checkov": {"skip": [{"id": "CKV_AWS_370", "comment": why}]}}
    resources = {
        "Model": {"Type": "AWS::SageMaker::Model", **checked, "Properties": model},
        "EndpointConfig": _resource("SageMaker::EndpointConfig", config),
        "Endpoint": _resource("SageMaker::Endpoint", endpoint)
        | ({"DependsOn": before} if before else {}),
        **_scaling(plan),
        **(_end(plan, model["Tags"]) if ends else {}),
        **_observability(plan),
    }
    for component in components:  # the copies of the model, which the endpoint starts
        component["EndpointName"] = {"Fn::GetAtt": ["Endpoint", "EndpointName"]}
        component["Specification"]["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
        resources["InferenceComponent"] = _resource("SageMaker::InferenceComponent", component)
    return resources


def _scaling(plan: Plan) -> dict[str, Any]:
    """The target, the policy, and with a scale to zero the policy that starts the first copy, and
    the alarm that calls it. CloudFormation creates the target's role."""
    scaling, service = plan.scaling, "ApplicationAutoScaling"
    if scaling is None:
        return {}

    def policy(parameters: dict[str, Any]) -> dict[str, Any]:
        _, _, _, name, kind, configuration = parameters
        target = {"ScalingTargetId": {"Ref": "ScalableTarget"}}
        kept = {key: parameters[key] for key in (name, kind)}
        return _resource(
            f"{service}::ScalingPolicy",
            {**kept, **target, configuration: parameters[configuration]},
        )

    target: dict[str, Any] = register_parameters(plan.name, VARIANT, scaling)
    if not scaling.scales_copies:
        variant = f"endpoint/${{Endpoint.EndpointName}}/variant/{VARIANT}"
        target["ResourceId"] = {"Fn::Sub": variant}
    resources = {
        "ScalableTarget": _resource(f"{service}::ScalableTarget", target),
        "ScalingPolicy": policy(policy_parameters(plan.name, VARIANT, scaling)),
    }
    if scaling.scales_copies:
        resources["ScalableTarget"]["DependsOn"] = "InferenceComponent"
    if scaling.scales_to_zero:
        tags: list[Any] = [{"Key": DEPLOYMENT_TAG, "Value": plan.name}, *plan.company.tag_list]
        alarm = wake_alarm(plan.name, {"Ref": "WakeUpPolicy"}, [*tags, _STACK])
        resources["WakeUpPolicy"] = policy(wake_policy_parameters(plan.name, VARIANT, scaling))
        resources["WakeUpAlarm"] = _resource("CloudWatch::Alarm", alarm)
    return resources


def _observability(plan: Plan) -> dict[str, Any]:
    """Alarms, metric filters, log and dashboard, as far as the plan has them."""
    resources = {}
    made = alarms(plan, CONFIG_NAME)
    for kind, alarm in zip(alarm_kinds(plan), made, strict=True):
        if "AlarmActions" in alarm:
            topic = [{"Ref": "AlarmTopicArn"}]
            alarm |= {"AlarmActions": topic, "OKActions": topic}
        resources[f"{kind.title()}Alarm"] = _resource("CloudWatch::Alarm", alarm)
    for log_filter in metric_filters(plan):
        (transformation,) = log_filter["metricTransformations"]
        properties = {
            "FilterName": log_filter["filterName"],
            "FilterPattern": log_filter["filterPattern"],
            "LogGroupName": log_filter["logGroupName"],
            "MetricTransformations": [
                {f"{key[0].upper()}{key[1:]}": value for key, value in transformation.items()}
            ],
        }
        # SageMaker makes the log when the endpoint starts.
        after = {"DependsOn": "InferenceComponent" if plan.copies else "Endpoint"}
        resource = _resource("Logs::MetricFilter", properties)
        resources[f"{transformation['metricName']}Filter"] = resource | after
    if (days := log_retention_days(plan)) is not None:
        log: dict[str, Any] = {
            "LogGroupName": log_of(plan),
            "RetentionInDays": days,
            "KmsKeyId": {"Fn::If": ["LogHasKey", {"Ref": "LogKmsKeyArn"}, {"Ref": "AWS::NoValue"}]},
        }
        if plan.company.tags:
            log["Tags"] = plan.company.tag_list
        resources["Log"] = _resource("Logs::LogGroup", log) | {"Condition": "LogIsNew"}
    if has_dashboard(plan):
        dashboard = {
            "DashboardName": dashboard_name(plan.name, plan.region),
            "DashboardBody": dashboard_text(plan),
        }
        resources["Dashboard"] = _resource("CloudWatch::Dashboard", dashboard)
    return resources


def _end(plan: Plan, tags: list[Any]) -> dict[str, Any]:
    """The role of the scheduler, and the schedules that delete the copies and the endpoint."""
    arn = "arn:${AWS::Partition}:sagemaker:${AWS::Region}:${AWS::AccountId}"
    endpoint: Any = {"Fn::Sub": f"{arn}:endpoint/{plan.name}"}
    component: Any = {"Fn::Sub": f"{arn}:inference-component/{plan.name}"} if plan.copies else None
    policy = role_policy(endpoint, (DEPLOYMENT_TAG, plan.name), component)
    role = {
        "AssumeRolePolicyDocument": trust_policy({"Ref": "AWS::AccountId"}),
        "Policies": [{"PolicyName": END_POLICY, "PolicyDocument": policy}],
        **role_settings(plan.company),
        "Tags": list(tags),
    }
    resources = {"SchedulerRole": _resource("IAM::Role", role)}
    schedules = {"Schedule": ("EndsAt", False)}
    if plan.copies:
        schedules["CopiesSchedule"] = "CopiesEndAt", True
    for resource, (ends_at, copies) in schedules.items():
        planned = schedule(plan.region, plan.name, f"at(${{{ends_at}}})", copies)
        properties = planned | {
            "ScheduleExpression": {"Fn::Sub": planned["ScheduleExpression"]},
            "Target": {
                **planned["Target"],
                "Arn": {"Fn::Sub": target_arn("${AWS::Partition}", copies)},
                "RoleArn": {"Fn::GetAtt": ["SchedulerRole", "Arn"]},
            },
        }
        resources[resource] = _resource("Scheduler::Schedule", properties)
    return resources


def _outputs(plan: Plan, outputs: dict[str, Any]) -> dict[str, Any]:
    url = outputs["OpenAIBaseURL"]["Value"]
    url["Fn::Sub"] = url["Fn::Sub"].replace("COMPONENT", component_path(plan))
    if has_dashboard(plan):
        consoles = {"us-gov-": "console.amazonaws-us-gov.com", "cn-": "console.amazonaws.cn"}
        domains = (domain for start, domain in consoles.items() if plan.region.startswith(start))
        console = f"https://{plan.region}.{next(domains, 'console.aws.amazon.com')}/cloudwatch/home"
        name = dashboard_name(plan.name, plan.region)
        link = f"{console}?region={plan.region}#dashboards/dashboard/{name}"
        outputs["DashboardURL"] = {"Value": link}
    for folder in folders(plan):
        outputs[f"{folder.part.title()}Weights"] = {
            "Description": f"Must contain the files of {folder.described}",
            "Value": str(S3Uri(MODEL_BUCKET, folder.prefix)),
        }
    return outputs
