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
from peagle.render.alarms import alarms, metric_filters
from peagle.render.dashboard import (
    dashboard_name,
    dashboard_text,
    has_dashboard,
    log_retention_days,
)
from peagle.render.requests import owned_requests
from peagle.render.resources import deployment_config, limit_name

CONFIG_NAME = "${EndpointConfigName}"
"""Stands for the name of the endpoint configuration in the dimensions of alarms."""

_SCALING = (
    "min_instances", "max_instances", "target_concurrency", "scale_in_cooldown_seconds",
    "scale_out_cooldown_seconds",
)  # fmt: skip

_ALARM = {
    "name": "AlarmName", "description": "AlarmDescription", "namespace": "Namespace",
    "metric": "MetricName", "dimensions": "Dimensions", "statistic": "Statistic",
    "extended_statistic": "ExtendedStatistic", "period_seconds": "Period",
    "comparison": "ComparisonOperator", "threshold": "Threshold",
    "evaluation_periods": "EvaluationPeriods", "datapoints_to_alarm": "DatapointsToAlarm",
    "missing_data": "TreatMissingData",
}  # fmt: skip
"""Values of an alarm -> parameters of PutMetricAlarm."""


def values(plan: Plan, owner: str) -> dict[str, Any]:
    """The values of the plan; what it does not have is ``None`` or empty. ``owner`` is the format
    in the owner's tag. ``${ModelBucket}`` in the URIs of weights is the user's bucket."""
    model, config, endpoint = (request.parameters for request in owned_requests(plan, owner))
    (variant,) = config["ProductionVariants"]
    container, network = model["PrimaryContainer"], model.get("VpcConfig", {})
    sources = [
        *([container["ModelDataSource"]] if "ModelDataSource" in container else []),
        *container.get("AdditionalModelDataSources", []),
    ]
    undoing = plan.rollout.alarms if plan.rollout else ()
    made = zip(alarm_kinds(plan), alarms(plan, CONFIG_NAME), strict=True)
    dashboard = capture = end = None
    if has_dashboard(plan):
        name = dashboard_name(plan.name, plan.region)
        dashboard = {"name": name, "body": dashboard_text(plan)}
    if captured := config.get("DataCaptureConfig"):
        capture = {
            "percent": captured["InitialSamplingPercentage"],
            "uri": captured["DestinationS3Uri"],
            "kms_key": captured.get("KmsKeyId"),
        }
    if ends_after(plan) is not None:
        end = {
            "name": limit_name(plan.region, plan.name),
            "permissions_boundary": role_settings(plan.company).get("PermissionsBoundary"),
            "tags": _tags(role_parameters(plan.company, "limits")["Tags"]),
        }
    return {
        "name": endpoint["EndpointName"],
        "region": plan.region,
        "model": {
            "image": container["Image"],
            "environment": container["Environment"],
            "data": [
                {"uri": source["S3DataSource"]["S3Uri"], "channel": source.get("ChannelName")}
                for source in sources
            ],
            "network_isolation": model.get("EnableNetworkIsolation", False),
            "subnets": network.get("Subnets", []),
            "security_group_ids": network.get("SecurityGroupIds", []),
        },
        "instances": {
            "type": variant["InstanceType"],
            "count": variant["InitialInstanceCount"],
            "ami": variant.get("InferenceAmiVersion"),
            "startup_timeout_seconds": variant["ContainerStartupHealthCheckTimeoutInSeconds"],
            "download_timeout_seconds": variant.get("ModelDataDownloadTimeoutInSeconds"),
            "routing_strategy": variant.get("RoutingConfig", {}).get("RoutingStrategy"),
        },
        "kms_key_arn": config.get("KmsKeyId"),
        "scaling": plan.scaling and {name: getattr(plan.scaling, name) for name in _SCALING},
        "rollout": _rollout(plan),
        "alarms": {kind: _alarm(alarm, kind in undoing) for kind, alarm in made},
        "metric_filters": {
            metric["metricName"]: {
                "filter": log_filter["filterName"],
                "pattern": log_filter["filterPattern"],
                "namespace": metric["metricNamespace"],
                "value": metric["metricValue"],
            }
            for log_filter in metric_filters(plan)
            for metric in log_filter["metricTransformations"]
        },
        "log_retention_days": log_retention_days(plan),
        "dashboard": dashboard,
        "capture": capture,
        "end": end,
        "tags": _tags(endpoint["Tags"]),
        "own_tags": dict(plan.company.tags),
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


def _alarm(alarm: dict[str, Any], undoes_updates: bool) -> dict[str, Any]:
    pairs = {dimension["Name"]: dimension["Value"] for dimension in alarm.get("Dimensions", [])}
    queries = []
    for query in alarm.get("Metrics", []):
        stat = query.get("MetricStat")
        metric = stat and {
            "namespace": stat["Metric"]["Namespace"],
            "name": stat["Metric"]["MetricName"],
            "period_seconds": stat["Period"],
            "statistic": stat["Stat"],
        }
        queries.append(
            {
                "id": query["Id"],
                "returned": query["ReturnData"],
                "expression": query.get("Expression"),
                "label": query.get("Label"),
                "metric": metric,
            }
        )
    return {name: alarm.get(parameter) for name, parameter in _ALARM.items()} | {
        "dimensions": pairs or None,
        "actions": alarm.get("AlarmActions", []),
        "undoes_updates": undoes_updates,
        "queries": queries,
    }


def _tags(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}
