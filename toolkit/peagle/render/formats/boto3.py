"""The plan as one Python file that needs only boto3.

The file is ``templates/deploy.py.txt`` with the plan's requests inserted as Python literals.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from peagle.catalog.schema import Catalog
from peagle.planning.company import encrypted_by, role_parameters
from peagle.planning.limit import COPIES_BEFORE_SECONDS, ends_after
from peagle.planning.plan import Plan
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.planning.uploads import UPLOAD_FOLDER, planned_contents
from peagle.protocol import log_group
from peagle.render.alarms import alarm_names, alarms, all_alarm_names
from peagle.render.capture import capture_rule, rule_stem
from peagle.render.components import component_path
from peagle.render.dashboard import dashboard_body, dashboard_name, has_dashboard
from peagle.render.files import RenderedFile, readme, text_file
from peagle.render.limit import (
    copies_limit_name,
    copies_schedule,
    limit_name,
    role_policy,
    schedule,
    target_arn,
    trust_policy,
)
from peagle.render.metrics import log_of, metric_filters
from peagle.render.requests import (
    DEPLOYMENT_TAG,
    OWNER_TAG,
    VARIANT,
    folders,
    openai_base_url,
    owned_requests,
)
from peagle.render.rollout import deployment_config
from peagle.render.scaling import scaling_requests, target_parameters, wake_alarm_name

SCRIPT = "deploy.py"
FILES = (SCRIPT, "README.md")


def render(plan: Plan, catalog: Catalog) -> tuple[RenderedFile, ...]:
    return (text_file(SCRIPT, script(plan), executable=True), readme(plan, catalog, _HOW_TO))


def script(plan: Plan) -> str:
    made = (request.parameters for request in owned_requests(plan, "boto3"))
    model, config, endpoint, *component = made
    values = {
        "DESCRIPTION": f"{plan.pair} on {plan.instance_type} in {plan.region}",
        "REGION": plan.region,
        "MODEL": model,
        "CONFIG": config,
        "ENDPOINT": endpoint,
        "ROLLOUT": deployment_config(plan),
        "COMPONENT": component[0] if component else None,
        "OPENAI_BASE_URL": openai_base_url(plan.region, plan.name, component_path(plan)),
        "SCALING": scaling_requests(plan, VARIANT),
        "UPLOAD_ARGUMENTS": encrypted_by(plan.company.kms_key),
        "OWN_TAGS": [DEPLOYMENT_TAG, OWNER_TAG],
        "ALL_RESOURCE_NAMES": _all_resource_names(plan),
        "PLANNED": _planned(plan),
        "UPLOAD_FOLDER": UPLOAD_FOLDER,
        "CONTENTS": planned_contents(plan),
        "UPLOADS": {folder.part: folder.prefix for folder in folders(plan)},
    }
    end, observe = _end(plan), _observe(plan, config["EndpointConfigName"])
    code = {**end, **observe, **_parts("update.py.txt", ("UPDATE",))}
    code |= _parts("delete.py.txt", ("DELETE",))
    # Split at the placeholders first, so that a value that looks like one is left alone.
    pieces = _template("deploy.py.txt").split("@")
    return "".join(
        _literal(values[piece]) if piece in values else code.get(piece, piece) for piece in pieces
    )


def _all_resource_names(plan: Plan) -> dict[str, Any]:
    """The names of what any plan of the endpoint may have, which `--delete` looks for."""
    name, region = plan.name, plan.region
    role = limit_name(region, name)
    return {
        "targets": [target_parameters(name, VARIANT, copies) for copies in (False, True)],
        "alarms": [*all_alarm_names(name), wake_alarm_name(name)],
        "dashboard": dashboard_name(name, region),
        "logs": [log_group(name, copies) for copies in (False, True)],
        "filters": DEFAULT_PREFIX,
        "capture_rules": rule_stem(name, region),
        "schedules": {role: COPIES_BEFORE_SECONDS, copies_limit_name(region, name): 0},
        "scheduler_role": role,
    }


def _planned(plan: Plan) -> dict[str, Any]:
    """What this plan has of those of which an update removes the rest."""
    wakes = plan.scaling is not None and plan.scaling.scales_to_zero
    return {
        "alarms": [*alarm_names(plan), *([wake_alarm_name(plan.name)] if wakes else [])],
        "dashboard": has_dashboard(plan),
        "ends": ends_after(plan) is not None,
    }


def _end(plan: Plan) -> dict[str, str]:
    """The code that lets the scheduler delete the endpoint, by its place in the script; empty for a
    plan without an end."""
    seconds = ends_after(plan)
    if seconds is None:
        return dict.fromkeys(_PLACES, "")
    arn = f"arn:{_PARTITION}:sagemaker:{plan.region}:{_ACCOUNT}"
    component = f"{arn}:inference-component/{plan.name}" if plan.copies else None
    tag = (DEPLOYMENT_TAG, plan.name)
    constants: dict[str, Any] = {
        "ENDS_AFTER_SECONDS": seconds,
        "SCHEDULE": schedule(plan.region, plan.name, ""),
        "SCHEDULER_TRUST": trust_policy(_ACCOUNT),
        "SCHEDULER_POLICY": role_policy(f"{arn}:endpoint/{plan.name}", tag, component),
        "SCHEDULER_ROLE": role_parameters(plan.company, "limits"),
        "SCHEDULER_TARGET": target_arn(_PARTITION),
    }
    if plan.copies:
        constants["COPIES_SCHEDULE"] = copies_schedule(plan.region, plan.name, "")
        constants["COPIES_TARGET"] = target_arn(_PARTITION, copies=True)
        constants["COPIES_BEFORE_SECONDS"] = COPIES_BEFORE_SECONDS
    parts = _parts("end.py.txt", (*_PLACES, *_OF_COPIES))
    for name in _OF_COPIES:
        own = parts.pop(name)
        added = own if plan.copies else ""
        parts = {key: part.replace(f"#{name}#\n", added) for key, part in parts.items()}
    text = "# When the endpoint is deleted."
    return {**parts, "END_CONSTANTS": _constants(text, constants)}


_PLACES = ("END_CONSTANTS", "END_OPTION", "END_SET", "END")
_OF_COPIES = ("END_SET_COPIES",)
"""What a plan with copies has besides, inside of the other parts."""
_ACCOUNT, _PARTITION = "${Account}", "${Partition}"


def _template(name: str) -> str:
    return (files("peagle.render") / "templates" / name).read_text(encoding="utf-8")


def _parts(template: str, places: Sequence[str]) -> dict[str, str]:
    """The parts of a template by their names."""
    pieces = _template(template).split("@")
    parts = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return {name: parts[name].lstrip("\n") for name in places if name in parts}


def _constants(comment: str, values: dict[str, Any]) -> str:
    text = "".join(f"{name} = {_literal(value)}\n" for name, value in values.items())
    return f"\n{comment}\n{text}"


def _observe(plan: Plan, config: str) -> dict[str, str]:
    """The code that creates alarms and dashboard, and sets how long log and captured data are kept,
    by its place in the script; empty for a plan without all of these."""
    days = plan.observe.log_retention_days if plan.observe else None
    log, filters = log_of(plan), list(metric_filters(plan))
    captured = capture_rule(plan)
    dashboards = {dashboard_name(plan.name, plan.region): dashboard_body(plan)}
    requests: dict[str, list[Any]] = {
        "put_retention_policy": [{"logGroupName": log, "retentionInDays": days}] if days else [],
        "put_metric_filter": filters,
        "put_metric_alarm": list(alarms(plan, config, "boto3")),
    }
    if not (has_dashboard(plan) or captured or any(requests.values())):
        return dict.fromkeys(_OBSERVE_PLACES, "")
    constants = {
        "OBSERVE": requests,
        "LOG_GROUPS": [log] if days or filters else [],
        "LOG_TAGS": {"tags": {**plan.company.tags, DEPLOYMENT_TAG: plan.name, OWNER_TAG: "boto3"}},
        "DASHBOARDS": dashboards if has_dashboard(plan) else {},
        "CAPTURE_RULES": {captured[0].bucket: captured[1]} if captured else {},
    }
    text = "# How the endpoint is observed: requests by operation, log, dashboards, captured data."
    return {
        **_parts("observe.py.txt", _OBSERVE_PLACES),
        "OBSERVE_CONSTANTS": _constants(text, constants),
    }


_OBSERVE_PLACES = ("OBSERVE_CONSTANTS", "OBSERVE_SET", "OBSERVE")


def _literal(value: Any, indent: str = "") -> str:
    """A Python literal. For strings and numbers, JSON without escaped surrogate pairs is one."""
    inner = f"{indent}    "
    if isinstance(value, dict) and value:
        lines = [f"{_literal(key)}: {_literal(one, inner)}" for key, one in value.items()]
    elif isinstance(value, list) and value:
        lines = [_literal(one, inner) for one in value]
    else:
        is_python = value is None or isinstance(value, bool)
        return repr(value) if is_python else json.dumps(value, ensure_ascii=False)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    body = "".join(f"{inner}{line},\n" for line in lines).removesuffix(",\n")
    return f"{opening}\n{body}\n{indent}{closing}"


_HOW_TO = """\
# {name}: boto3

`deploy.py` deploys {pair} on {count} {instance_type} in {region}{price}.

```
pip install boto3
python deploy.py --role ROLE_ARN{bucket_option}{folder_options}{end_option}
python deploy.py --delete
```
{folders}{ends}
The script uploads only files that S3 does not have with the same bytes. Once an update has
succeeded, it removes what only the earlier plan had: scaling, alarms, dashboard and the scheduled
deletion; before it only scaling, where the instance type changes, because SageMaker requires that.
Metric filters and the capture rule of an earlier plan stay until `--delete`.

`--delete` deletes all that the script made, also with earlier plans that had more: endpoint,
configurations, models, their uploaded weights, and what it created to observe, scale and end the
endpoint. Resources that it has no permission to read or delete are listed, and the exit code is 1.
If the endpoint is one of them, its configurations, models, weights and scheduled deletion stay too.

The endpoint takes up to {minutes} minutes to start.
{calling}{proving}"""
