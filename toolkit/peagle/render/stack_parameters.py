"""The parameters of a stack, whose defaults are the plan's values, and the groups that the console
shows them in."""

from __future__ import annotations

from typing import Any

from peagle.planning.limit import ends_after
from peagle.planning.observe import LOG_DAYS
from peagle.planning.plan import Plan
from peagle.planning.runtime import MAX_NAME_LENGTH
from peagle.render.components import managed_instances
from peagle.render.dashboard import has_dashboard, log_retention_days
from peagle.render.requests import folders
from peagle.render.stack_references import offered_scaling

_KEY_ARN = r"^(arn:aws[a-z\-]*:kms:[a-z0-9\-]+:\d{12}:(key|alias)/[a-zA-Z0-9/_\-]+)?$"
_TOPIC_ARN = r"^(arn:aws[a-z\-]*:sns:[a-z0-9\-]+:\d{12}:[A-Za-z0-9_\-]{1,256})?$"

_ENDS_AT = "When the endpoint is deleted, in UTC, such as 2030-01-31T20:00:00"
"""Description of the parameter."""

_COPIES_END_AT = "When the copies on the endpoint are deleted: ten minutes earlier"
"""The same for copies: a template computes no times."""


def parameters(plan: Plan) -> dict[str, Any]:
    """All parameters. Those without a default are of an account, not of a plan."""
    return {name: value for group in _groups(plan).values() for name, value in group.items()}


def interface(plan: Plan) -> dict[str, Any]:
    """``AWS::CloudFormation::Interface``: the groups, in the order of the parameters."""
    groups = [
        {"Label": {"default": label}, "Parameters": list(group)}
        for label, group in _groups(plan).items()
        if group
    ]
    return {"AWS::CloudFormation::Interface": {"ParameterGroups": groups}}


def _groups(plan: Plan) -> dict[str, dict[str, Any]]:
    return {
        "Endpoint": _endpoint(plan),
        "Instances": _instances(plan),
        "Scaling": _scaling(plan),
        "Observability": _observability(plan),
        "End": _end(plan),
    }


def _endpoint(plan: Plan) -> dict[str, Any]:
    name = _text(
        "Name of the endpoint, and the beginning of the names of what belongs to it",
        "^[a-zA-Z0-9](-*[a-zA-Z0-9])*$",
        Default=plan.name,
        MaxLength=MAX_NAME_LENGTH,
    )
    role = _text(
        "ARN of the role that SageMaker assumes to read the image and the weights",
        r"arn:aws[a-z\-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-/]+",
    )
    bucket = _text(
        "Bucket that holds the weights; README.md lists the prefixes",
        r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]",
    )
    return {
        "EndpointName": name,
        "ExecutionRoleArn": role,
        **({"ModelBucket": bucket} if folders(plan) else {}),
    }


def _min_instances(plan: Plan) -> int:
    """The minimum number of instances: a rollout in steps needs as many as it was planned for."""
    rollout = plan.rollout
    if rollout is None or rollout.step is None or plan.copies is not None:
        return 1
    return plan.scaling.min_instances if plan.scaling else plan.instance_count


def _instances(plan: Plan) -> dict[str, Any]:
    text = f"Number of {plan.instance_type}; with scaling, when the endpoint is created"
    parameters = {"InitialInstanceCount": _number(text, plan.instance_count, _min_instances(plan))}
    if plan.copies is None:
        return parameters
    low, high = managed_instances(plan)
    bounds = "number of instances that SageMaker runs for the copies"
    return parameters | {
        "MinInstances": _number(f"Minimum {bounds}", low, 0),
        "MaxInstances": _number(
            f"Maximum {bounds}; an update needs one more than the copies fill", high, 1
        ),
        "Copies": _number("Number of copies of the engine", plan.engines, 1),
    }


def _scaling(plan: Plan) -> dict[str, Any]:
    scaling = offered_scaling(plan)
    if scaling is None:
        return {}
    units, unit = ("Copies", "copy") if scaling.scales_copies else ("Instances", "instance")
    text = (
        f"Whether the number of {units.lower()} follows the requests: about "
        f"{scaling.target_concurrency:g} concurrent requests per {unit}"
    )
    bounds = f"number of {units.lower()} with automatic scaling"
    lowest = 0 if scaling.scales_copies else _min_instances(plan)
    return {
        "Scaling": _switch(text, plan.scaling is not None),
        f"Min{units}": _number(f"Minimum {bounds}", scaling.minimum, lowest),
        f"Max{units}": _number(f"Maximum {bounds}", scaling.maximum, 1),
    }


def _observability(plan: Plan) -> dict[str, Any]:
    topic = plan.observe.alarm_topic if plan.observe else None
    parameters = {
        "Observability": _switch(
            "Whether the stack has a dashboard and alarms", has_dashboard(plan)
        ),
        "AlarmTopicArn": _text(
            "ARN of the SNS topic that the alarms notify; empty for none",
            _TOPIC_ARN,
            Default=topic or "",
        ),
    }
    days = log_retention_days(plan)
    if days is None:
        return parameters
    key = "ARN of a KMS key that encrypts the log and that CloudWatch Logs may use; empty for none"
    return parameters | {
        "LogRetentionInDays": {
            "Type": "Number",
            "Description": "Days for which the log is kept",
            "Default": days,
            "AllowedValues": list(LOG_DAYS),
        },
        "LogKmsKeyArn": _text(key, _KEY_ARN, Default=""),
    }


def _end(plan: Plan) -> dict[str, Any]:
    if ends_after(plan) is None:
        return {}
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    copies = {"CopiesEndAt": _text(_COPIES_END_AT, moment)} if plan.copies else {}
    return {"EndsAt": _text(_ENDS_AT, moment), **copies}


def _text(description: str, pattern: str, **more: Any) -> dict[str, Any]:
    return {"Type": "String", "Description": description, "AllowedPattern": pattern, **more}


def _number(description: str, default: int, minimum: int) -> dict[str, Any]:
    return {"Type": "Number", "Description": description, "Default": default, "MinValue": minimum}


def _switch(description: str, on: bool) -> dict[str, Any]:
    return {
        "Type": "String",
        "Description": description,
        "Default": str(on).lower(),
        "AllowedValues": ["true", "false"],
    }
