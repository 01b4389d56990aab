"""The plan as JSON values, which the Terraform module and the CDK construct read.

The values have the names of the module's variables, which ``infra/terraform/variables.tf``
describes. Names of model and configuration are not among them: the tool that creates these names
them.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.company import role_parameters, role_settings
from peagle.planning.operation import alarm_kinds, ends_after
from peagle.planning.plan import Plan
from peagle.render.alarms import alarms
from peagle.render.dashboard import (
    dashboard_name,
    dashboard_text,
    has_dashboard,
    log_retention_days,
)
from peagle.render.metrics import metric_filters
from peagle.render.requests import owned_requests
from peagle.render.resources import limit_name
from peagle.render.rollout import deployment_config

CONFIG_NAME = "${EndpointConfigName}"
"""Stands for the name of the endpoint configuration in the dimensions of alarms."""


_SCALING = (
    "min_instances", "max_instances", "target_concurrency", "scale_in_cooldown_seconds",
    "scale_out_cooldown_seconds",
)  # fmt: skip


def values(plan: Plan, owner: str) -> dict[str, Any]:
    """The values of the plan; what it does not have is ``None`` or empty. ``owner`` is the format
    in the owner's tag. ``${ModelBucket}`` in the URIs of weights is the user's bucket."""
    model, config, endpoint = (request.parameters for request in owned_requests(plan, owner))
    (variant,) = config["ProductionVariants"]
    return {
        "name": endpoint["EndpointName"],
        "region": plan.region,
        "model": _model(model),
        "instances": _instances(variant),
        "kms_key_arn": config.get("KmsKeyId"),
        "scaling": plan.scaling and {name: getattr(plan.scaling, name) for name in _SCALING},
        "rollout": _rollout(plan),
        "alarms": _alarms(plan, owner),
        "metric_filters": _metric_filters(plan),
        "log_retention_days": log_retention_days(plan),
        "dashboard": _dashboard(plan),
        "capture": _capture(config.get("DataCaptureConfig")),
        "end": _end(plan),
        "tags": _tags(endpoint["Tags"]),
        "own_tags": dict(plan.company.tags),
    }


def _model(model: dict[str, Any]) -> dict[str, Any]:
    container = model["PrimaryContainer"]
    sources = [{"ChannelName": None, **container["ModelDataSource"]}] if (
        "ModelDataSource" in container) else []  # fmt: skip
    sources += container.get("AdditionalModelDataSources", [])
    network = model.get("VpcConfig", {})
    return {
        "image": container["Image"],
        "environment": container["Environment"],
        "data": [
            {"uri": source["S3DataSource"]["S3Uri"], "channel": source["ChannelName"]}
            for source in sources
        ],
        "network_isolation": model.get("EnableNetworkIsolation", False),
        "subnets": network.get("Subnets", []),
        "security_group_ids": network.get("SecurityGroupIds", []),
    }


def _instances(variant: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": variant["InstanceType"],
        "count": variant["InitialInstanceCount"],
        "ami": variant.get("InferenceAmiVersion"),
        "startup_timeout_seconds": variant["ContainerStartupHealthCheckTimeoutInSeconds"],
        "download_timeout_seconds": variant.get("ModelDataDownloadTimeoutInSeconds"),
        "routing_strategy": variant.get("RoutingConfig", {}).get("RoutingStrategy"),
    }


def _rollout(plan: Plan) -> dict[str, Any] | None:
    config = deployment_config(plan)
    if config is None or plan.rollout is None:
        return None
    policy = config.get("RollingUpdatePolicy") or config["BlueGreenUpdatePolicy"]
    traffic = policy.get("TrafficRoutingConfiguration", {})
    step = policy.get("MaximumBatchSize") or traffic.get("CanarySize")
    step = step or traffic.get("LinearStepSize")
    return {
        "kind": traffic.get("Type", "ROLLING").lower().replace("_", "-"),
        "step": {"type": step["Type"], "value": step["Value"]} if step else None,
        "baking_seconds": plan.rollout.baking_seconds,
        "maximum_execution_seconds": policy["MaximumExecutionTimeoutInSeconds"],
    }


_ALARM = {
    "name": "AlarmName", "description": "AlarmDescription", "namespace": "Namespace",
    "metric": "MetricName", "dimensions": "Dimensions", "statistic": "Statistic",
    "extended_statistic": "ExtendedStatistic", "period_seconds": "Period",
    "comparison": "ComparisonOperator", "threshold": "Threshold",
    "evaluation_periods": "EvaluationPeriods", "datapoints_to_alarm": "DatapointsToAlarm",
    "missing_data": "TreatMissingData",
}  # fmt: skip
"""Values of an alarm -> parameters of PutMetricAlarm."""


def _alarms(plan: Plan, owner: str) -> dict[str, Any]:
    undoing = plan.rollout.alarms if plan.rollout else ()
    written: dict[str, Any] = {}
    for kind, alarm in zip(alarm_kinds(plan), alarms(plan, CONFIG_NAME, owner), strict=True):
        values = {name: alarm.get(parameter) for name, parameter in _ALARM.items()}
        pairs = {dimension["Name"]: dimension["Value"] for dimension in alarm.get("Dimensions", [])}
        written[kind] = values | {
            "dimensions": pairs or None,
            "actions": alarm.get("AlarmActions", []),
            "undoes_updates": kind in undoing,
            "queries": [_query(query) for query in alarm.get("Metrics", [])],
        }
    return written


def _query(query: dict[str, Any]) -> dict[str, Any]:
    stat = query.get("MetricStat")
    metric = stat and {
        "namespace": stat["Metric"]["Namespace"],
        "name": stat["Metric"]["MetricName"],
        "period_seconds": stat["Period"],
        "statistic": stat["Stat"],
    }
    return {
        "id": query["Id"],
        "returned": query["ReturnData"],
        "expression": query.get("Expression"),
        "label": query.get("Label"),
        "metric": metric,
    }


def _metric_filters(plan: Plan) -> dict[str, Any]:
    written = {}
    for log_filter in metric_filters(plan):
        (metric,) = log_filter["metricTransformations"]
        written[metric["metricName"]] = {
            "filter": log_filter["filterName"],
            "pattern": log_filter["filterPattern"],
            "namespace": metric["metricNamespace"],
            "value": metric["metricValue"],
        }
    return written


def _dashboard(plan: Plan) -> dict[str, Any] | None:
    if not has_dashboard(plan):
        return None
    return {"name": dashboard_name(plan.name, plan.region), "body": dashboard_text(plan)}


def _capture(config: dict[str, Any] | None) -> dict[str, Any] | None:
    if config is None:
        return None
    return {
        "percent": config["InitialSamplingPercentage"],
        "uri": config["DestinationS3Uri"],
        "kms_key": config.get("KmsKeyId"),
    }


def _end(plan: Plan) -> dict[str, Any] | None:
    if ends_after(plan) is None:
        return None
    return {
        "name": limit_name(plan.region, plan.name),
        "permissions_boundary": role_settings(plan.company).get("PermissionsBoundary"),
        "tags": _tags(role_parameters(plan.company, "limits")["Tags"]),
    }


def _tags(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}
