"""The observability of a stack: alarms, metric filters, log and dashboard.

Alarms that undo an update are in every stack of a plan with a rollout; the others, and the
dashboard, where the parameter ``Observability`` is true.
"""

from __future__ import annotations

from typing import Any

from peagle.planning.observe import alarm_kinds
from peagle.planning.plan import Plan
from peagle.render.alarms import alarms
from peagle.render.dashboard import dashboard_name, dashboard_text, keeps_log
from peagle.render.metrics import log_of, metric_filters
from peagle.render.rollout import deployment_config
from peagle.render.stack_references import (
    CONFIG_NAME,
    ENCRYPTS_LOG,
    NOTIFIES,
    OBSERVES,
    either,
    with_observability,
)

_CONSOLES = {"us-gov-": "console.amazonaws-us-gov.com", "cn-": "console.amazonaws.cn"}


def observability_resources(plan: Plan) -> dict[str, Any]:
    """The resources, with placeholders in place of references."""
    full = with_observability(plan)
    return {
        **_alarms(full, plan),
        **_filters(full),
        **(_log(plan) if keeps_log(plan) else {}),
        "Dashboard": {
            "Type": "AWS::CloudWatch::Dashboard",
            "Condition": OBSERVES,
            "Properties": {
                "DashboardName": dashboard_name(plan.name, plan.region),
                "DashboardBody": dashboard_text(full),
            },
        },
    }


def dashboard_url(plan: Plan) -> str:
    """Where the console shows the dashboard."""
    domains = (one for start, one in _CONSOLES.items() if plan.region.startswith(start))
    console = f"https://{plan.region}.{next(domains, 'console.aws.amazon.com')}/cloudwatch/home"
    name = dashboard_name(plan.name, plan.region)
    return f"{console}?region={plan.region}#dashboards/dashboard/{name}"


def rollout_config(plan: Plan) -> dict[str, Any]:
    """How the stack updates the endpoint, or its copies. References to the alarms, so that they
    are made first."""
    config = deployment_config(plan)
    if config is None or plan.rollout is None:
        return {}
    names = [{"AlarmName": {"Ref": _alarm_id(kind)}} for kind in plan.rollout.alarms]
    return {"DeploymentConfig": config | {"AutoRollbackConfiguration": {"Alarms": names}}}


def _alarm_id(kind: str) -> str:
    return f"{kind.title()}Alarm"


def _condition(plan: Plan, kind: str) -> dict[str, str]:
    """The condition of what the alarm of this kind needs: none if it undoes updates."""
    undoes = plan.rollout is not None and kind in plan.rollout.alarms
    return {} if undoes else {"Condition": OBSERVES}


def _alarms(full: Plan, plan: Plan) -> dict[str, Any]:
    """The alarms of the plan, and those that only the stack offers (``full`` has both)."""
    topic = either(NOTIFIES, [{"Ref": "AlarmTopicArn"}])
    notify = {"AlarmActions": topic, "OKActions": topic}
    parameters = {
        kind: alarm
        for source in (full, plan)  # an alarm of the plan replaces the offered one
        for kind, alarm in zip(
            alarm_kinds(source), alarms(source, CONFIG_NAME, "cloudformation"), strict=True
        )
    }
    return {
        _alarm_id(kind): {
            "Type": "AWS::CloudWatch::Alarm",
            **_condition(plan, kind),
            "Properties": alarm | notify,
        }
        for kind, alarm in parameters.items()
    }


def _filters(plan: Plan) -> dict[str, Any]:
    """The filters of the log, which SageMaker makes when the endpoint starts."""
    made = {}
    for one in metric_filters(plan):
        (transformation,) = one["metricTransformations"]
        made[f"{transformation['metricName']}Filter"] = {
            "Type": "AWS::Logs::MetricFilter",
            **_condition(plan, "acceptance"),
            "DependsOn": "InferenceComponent" if plan.copies else "Endpoint",
            "Properties": {
                "FilterName": one["filterName"],
                "FilterPattern": one["filterPattern"],
                "LogGroupName": one["logGroupName"],
                "MetricTransformations": [
                    {f"{key[0].upper()}{key[1:]}": value for key, value in transformation.items()}
                ],
            },
        }
    return made


def _log(plan: Plan) -> dict[str, Any]:
    """The log with its retention, which the stack deletes."""
    properties: dict[str, Any] = {
        "LogGroupName": log_of(plan),
        "RetentionInDays": {"Ref": "LogRetentionInDays"},
        "KmsKeyId": either(ENCRYPTS_LOG, {"Ref": "LogKmsKeyArn"}),
    }
    if plan.company.tags:
        properties["Tags"] = plan.company.tag_list
    return {"Log": {"Type": "AWS::Logs::LogGroup", "Properties": properties}}
