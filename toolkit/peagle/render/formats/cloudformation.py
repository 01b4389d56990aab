"""The plan as a CloudFormation stack: Model, EndpointConfig, Endpoint, InferenceComponent, and the
scaling, alarms, dashboard, log and end that the plan has.

Model and EndpointConfig get no names: a change of a configuration replaces it, so CloudFormation
creates the new one under a generated name and updates the endpoint to it. Parameters are for what
differs between accounts; without any, the stack does what the plan says.

A plan is rendered under the name ``NAME``. Every text that contains it becomes a reference to the
parameter ``EndpointName``, so that names of alarms, logs and roles follow the endpoint's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import yaml

from peagle.catalog.schema import Catalog
from peagle.planning.company import role_settings
from peagle.planning.operation import alarm_kinds, ends_after
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan
from peagle.planning.runtime import DEFAULT_PREFIX, own_name
from peagle.render import files
from peagle.render.alarms import alarms
from peagle.render.components import component_path, managed_instances
from peagle.render.dashboard import dashboard_name, dashboard_text, has_dashboard, keeps_log
from peagle.render.files import PlainDumper, RenderedFile, readme, text_file, yaml_text
from peagle.render.metrics import log_of, metric_filters
from peagle.render.requests import (
    DEPLOYMENT_TAG,
    KEPT_COUNT,
    STACK_TAG,
    VARIANT,
    folders,
    owned_requests,
)
from peagle.render.resources import (
    END_POLICY,
    ENDS_TAG,
    POLICY,
    WAKE_POLICY,
    copies_id,
    not_in_templates,
    register_parameters,
    role_policy,
    schedule,
    target_arn,
    tracking,
    trust_policy,
    wake_alarm,
    wake_steps,
)
from peagle.render.rollout import deployment_config
from peagle.s3uri import S3Uri

TEMPLATE = "template.yaml"
FILES = (TEMPLATE, "README.md")

NAME = "PeagleEndpointName"
"""Stands for the endpoint's name."""

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
    """The template as plain data."""
    named = plan.model_copy(update={"name": NAME})
    parts = yaml.safe_load(files.template("cloudformation.yaml"))
    parts["Conditions"][_PLANNED_NAME]["Fn::Equals"][1] = plan.name
    resources: dict[str, Any] = _with_references(_resources(named, plan))
    used = json.dumps(resources)
    chosen = _parameters(plan)
    groups = {
        label: {name: entry | chosen[label][name] for name, entry in group.items()
                if name in chosen[label]}
        for label, group in parts["Parameters"].items() if chosen[label]
    }  # fmt: skip
    # A stack in another region would fail after minutes: the image is in the plan's region.
    region = {
        "Assert": {"Fn::Equals": [{"Ref": "AWS::Region"}, plan.region]},
        "AssertDescription": f"The plan is for {plan.region}",
    }
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"{plan.pair} served by vLLM {plan.runtime.vllm}",
        "Metadata": {
            "AWS::CloudFormation::Interface": {
                "ParameterGroups": [
                    {"Label": {"default": label}, "Parameters": list(group)}
                    for label, group in groups.items()
                ]
            }
        },
        "Parameters": {name: value for group in groups.values() for name, value in group.items()},
        "Rules": {"PlannedRegion": {"Assertions": [region]}},
        "Conditions": {
            name: condition
            for name, condition in parts["Conditions"].items()
            if f'"{name}"' in used
        },
        "Resources": resources,
        "Outputs": _with_references(_outputs(named, parts["Outputs"])),
    }


def _parameters(plan: Plan) -> dict[str, dict[str, dict[str, Any]]]:
    """The parameters that the template has, by group, each with what it has of the plan. Those
    without a default are of an account, not of a plan."""
    scaling, rollout, ends = plan.scaling, plan.rollout, ends_after(plan) is not None
    least = 1
    if rollout and rollout.step and plan.copies is None:  # as many as the steps were planned for
        least = scaling.min_instances if scaling else plan.instance_count
    text = f"Number of {plan.instance_type}"
    text += "; with scaling, when the endpoint is created" if scaling else ""
    count = {"Description": text, "Default": plan.instance_count, "MinValue": least}
    groups: dict[str, dict[str, dict[str, Any]]] = {
        "Endpoint": {"EndpointName": {"Default": plan.name}, "ExecutionRoleArn": {}},
        "Instances": {"InitialInstanceCount": count},
        "Scaling": {},
        "Observability": {},
        "End": {"EndsAt": {}} if ends else {},
    }
    if folders(plan):
        groups["Endpoint"]["ModelBucket"] = {}
    if plan.copies is not None:
        low, high = managed_instances(plan)
        numbers = {"MinInstances": low, "MaxInstances": high, "Copies": plan.engines}
        groups["Instances"] |= {name: {"Default": number} for name, number in numbers.items()}
        groups["End"] |= {"CopiesEndAt": {}} if ends else {}
    if scaling:
        units = "Copies" if scaling.scales_copies else "Instances"
        lowest = 0 if scaling.scales_copies else least
        groups["Scaling"] = {
            f"Min{units}": {"Default": scaling.minimum, "MinValue": lowest},
            f"Max{units}": {"Default": scaling.maximum},
        }
    if plan.observe and plan.observe.alarm_topic and alarm_kinds(plan):
        groups["Observability"]["AlarmTopicArn"] = {"Default": plan.observe.alarm_topic}
    if keeps_log(plan):
        groups["Observability"] |= {"LogKmsKeyArn": {}, "LogExists": {}}
    return groups


_SEVERAL, _ENCRYPTS_LOG, _MAKES_LOG = "SeveralInstances", "LogHasKey", "LogIsNew"
_PREFIXED, _PLANNED_NAME = "NameHasPrefix", "NameIsPlanned"


def _with_references(value: Any) -> Any:
    """``value`` with references in place of ``NAME``, ``CONFIG_NAME`` and the plan's
    placeholders."""
    if isinstance(value, list):
        return [_with_references(item) for item in value]
    if isinstance(value, dict):
        if set(value) == {"Fn::Sub"} and isinstance(value["Fn::Sub"], str):
            return _substituted(value["Fn::Sub"])
        return {key: _with_references(item) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    references = {
        NAME: {"Ref": "EndpointName"},
        CONFIG_NAME: {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]},
        EXECUTION_ROLE: {"Ref": "ExecutionRoleArn"},
    }
    if value in references:
        return references[value]
    if value.startswith(str(S3Uri(MODEL_BUCKET))):
        return {"Fn::Sub": value}
    return _substituted(value.replace("${", "${!")) if NAME in value else value


def _substituted(text: str) -> dict[str, Any]:
    prefixed = own_name(NAME)  # the beginning of the names of alarms and dashboards
    if prefixed not in text:
        return {"Fn::Sub": text.replace(NAME, "${EndpointName}")}
    name = {"Ref": "EndpointName"}
    with_prefix = {"Fn::Sub": f"{DEFAULT_PREFIX}${{EndpointName}}"}
    parts = text.replace(prefixed, "${OwnName}").replace(NAME, "${EndpointName}")
    return {"Fn::Sub": [parts, {"OwnName": {"Fn::If": [_PREFIXED, name, with_prefix]}}]}


def _where(condition: str, value: Any) -> dict[str, Any]:
    """``value`` where the condition holds, else nothing."""
    return {"Fn::If": [condition, value, {"Ref": "AWS::NoValue"}]}


def _resources(named: Plan, plan: Plan) -> dict[str, Any]:
    """The resources of ``named``, which is the plan with a placeholder as its name."""
    model, config, endpoint, *component = (
        request.parameters | {"Tags": [*request.parameters["Tags"], _STACK]}
        for request in owned_requests(named, "cloudformation")
    )
    before = ["Log"] if keeps_log(plan) else []
    if ends_after(plan) is not None:
        before = ["Schedule", *(["CopiesSchedule"] if plan.copies else []), *before]
        endpoint["Tags"].append({"Key": ENDS_TAG, "Value": {"Fn::Sub": "${EndsAt}Z"}})
    endpoint["EndpointConfigName"] = {"Fn::GetAtt": ["EndpointConfig", "EndpointConfigName"]}
    if not component:
        endpoint |= _rollout(plan)
    if plan.scaling and not component:
        endpoint |= KEPT_COUNT
    del model["ModelName"]
    checked: dict[str, Any] = {}
    if not plan.company.network_isolation:
        why = (
            "Isolation is a choice of the plan: an engine that downloads weights needs the network"
        )
        checked["Metadata"] = {"checkov": {"skip": [{"id": "CKV_AWS_370", "comment": why}]}}
    return {
        "Model": {"Type": "AWS::SageMaker::Model", **checked, "Properties": model},
        "EndpointConfig": _resource("SageMaker::EndpointConfig", _config(plan, config)),
        "Endpoint": _resource("SageMaker::Endpoint", endpoint)
        | ({"DependsOn": before} if before else {}),
        **_scaling(named),
        **(_end(plan, model["Tags"]) if ends_after(plan) is not None else {}),
        **_observability(named),
        **({"InferenceComponent": _component(plan, *component)} if component else {}),
    }


def _resource(kind: str, properties: dict[str, Any]) -> dict[str, Any]:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def _config(plan: Plan, config: dict[str, Any]) -> dict[str, Any]:
    (variant,) = config["ProductionVariants"]
    variant["InitialInstanceCount"] = {"Ref": "InitialInstanceCount"}
    if plan.copies is None:
        variant["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
        routing = {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
        variant["RoutingConfig"] = routing if plan.scaling else _where(_SEVERAL, routing)
    else:
        variant["ManagedInstanceScaling"] |= {
            "MinInstanceCount": {"Ref": "MinInstances"},
            "MaxInstanceCount": {"Ref": "MaxInstances"},
        }
    return {name: value for name, value in config.items() if name != "EndpointConfigName"}


def _component(plan: Plan, component: dict[str, Any]) -> dict[str, Any]:
    """The copies of the model, which the endpoint starts."""
    component["EndpointName"] = {"Fn::GetAtt": ["Endpoint", "EndpointName"]}
    component["Specification"]["ModelName"] = {"Fn::GetAtt": ["Model", "ModelName"]}
    component["RuntimeConfig"] = {"CopyCount": {"Ref": "Copies"}}
    return _resource("SageMaker::InferenceComponent", component | _rollout(plan))


def _rollout(plan: Plan) -> dict[str, Any]:
    """How the stack updates the endpoint, or its copies. References to the alarms, so that they
    are made first."""
    config = deployment_config(plan)
    if config is None or plan.rollout is None:
        return {}
    names = [{"AlarmName": {"Ref": f"{kind.title()}Alarm"}} for kind in plan.rollout.alarms]
    return {"DeploymentConfig": config | {"AutoRollbackConfiguration": {"Alarms": names}}}


def _scaling(plan: Plan) -> dict[str, Any]:
    """The target, the policy, and with a scale to zero the policy that starts the first copy, and
    the alarm that calls it. CloudFormation creates the target's role."""
    scaling = plan.scaling
    if scaling is None:
        return {}
    units = "Copies" if scaling.scales_copies else "Instances"
    variant: Any = {"Fn::Sub": f"endpoint/${{Endpoint.EndpointName}}/variant/{VARIANT}"}
    target = register_parameters(plan.name, VARIANT, scaling) | {
        "ResourceId": copies_id(plan.name) if scaling.scales_copies else variant,
        "MinCapacity": {"Ref": f"Min{units}"},
        "MaxCapacity": {"Ref": f"Max{units}"},
    }
    policy = {
        "PolicyName": POLICY,
        "PolicyType": "TargetTrackingScaling",
        "ScalingTargetId": {"Ref": "ScalableTarget"},
        "TargetTrackingScalingPolicyConfiguration": tracking(scaling),
    }
    service = "ApplicationAutoScaling"
    resources = {
        "ScalableTarget": _resource(f"{service}::ScalableTarget", target),
        "ScalingPolicy": _resource(f"{service}::ScalingPolicy", policy),
    }
    if scaling.scales_copies:
        resources["ScalableTarget"]["DependsOn"] = "InferenceComponent"
    if scaling.scales_to_zero:
        wake_up = {
            "PolicyName": WAKE_POLICY,
            "PolicyType": "StepScaling",
            "ScalingTargetId": {"Ref": "ScalableTarget"},
            "StepScalingPolicyConfiguration": wake_steps(scaling),
        }
        tags: list[Any] = [{"Key": DEPLOYMENT_TAG, "Value": plan.name}, *plan.company.tag_list]
        alarm = wake_alarm(plan.name, {"Ref": "WakeUpPolicy"}, [*tags, _STACK])
        resources["WakeUpPolicy"] = _resource(f"{service}::ScalingPolicy", wake_up)
        resources["WakeUpAlarm"] = _resource("CloudWatch::Alarm", alarm)
    return resources


def _observability(plan: Plan) -> dict[str, Any]:
    """Alarms, metric filters, log and dashboard, as far as the plan has them."""
    resources = {}
    made = alarms(plan, CONFIG_NAME, "cloudformation")
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
    if plan.observe and plan.observe.log_retention_days is not None:
        log: dict[str, Any] = {
            "LogGroupName": log_of(plan),
            "RetentionInDays": plan.observe.log_retention_days,
            "KmsKeyId": _where(_ENCRYPTS_LOG, {"Ref": "LogKmsKeyArn"}),
        }
        if plan.company.tags:
            log["Tags"] = plan.company.tag_list
        resources["Log"] = _resource("Logs::LogGroup", log) | {"Condition": _MAKES_LOG}
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
    endpoint: Any = {"Fn::Sub": f"{arn}:endpoint/{NAME}"}
    component: Any = {"Fn::Sub": f"{arn}:inference-component/{NAME}"} if plan.copies else None
    policy = role_policy(endpoint, (DEPLOYMENT_TAG, NAME), component)
    role = {
        "AssumeRolePolicyDocument": trust_policy({"Ref": "AWS::AccountId"}),
        "Policies": [{"PolicyName": END_POLICY, "PolicyDocument": policy}],
        **role_settings(plan.company),
        "Tags": list(tags),
    }
    resources = {
        "SchedulerRole": _resource("IAM::Role", role),
        "Schedule": _schedule(plan, "EndsAt"),
    }
    if plan.copies:
        resources["CopiesSchedule"] = _schedule(plan, "CopiesEndAt", copies=True)
    return resources


def _schedule(plan: Plan, ends_at: str, copies: bool = False) -> dict[str, Any]:
    """A schedule of the plan's name; under another name of the endpoint one with the stack's UUID,
    since a template can neither shorten nor hash a name to the 64 characters that are allowed."""
    planned = schedule(plan.region, NAME, f"at(${{{ends_at}}})", copies)
    own_name = schedule(plan.region, plan.name, "", copies)["Name"]
    uuid = {"Fn::Select": [2, {"Fn::Split": ["/", {"Ref": "AWS::StackId"}]}]}
    suffix = "-ic" if copies else ""
    other = {"Fn::Sub": [f"peagle-ends-${{StackUuid}}{suffix}", {"StackUuid": uuid}]}
    target = {
        **planned["Target"],
        "Arn": {"Fn::Sub": target_arn("${AWS::Partition}", copies)},
        "RoleArn": {"Fn::GetAtt": ["SchedulerRole", "Arn"]},
    }
    properties = planned | {
        "Name": {"Fn::If": [_PLANNED_NAME, own_name, other]},
        "ScheduleExpression": {"Fn::Sub": planned["ScheduleExpression"]},
        "Target": target,
    }
    return _resource("Scheduler::Schedule", properties)


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
