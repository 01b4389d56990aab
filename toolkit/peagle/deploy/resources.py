"""What belongs to a deployment outside of its endpoint: one class per kind of resource.

A kind says what a plan wants (``desired``), what the account has (``read``, ``find``), and makes
the second the first (``put``, ``delete``). ``put_settings`` is the loop that applies a plan;
``differences`` is the comparison that drift shows. Each call may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from peagle.aws import cloudwatch, s3, scheduler
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.sagemaker import ID_TAG
from peagle.deploy.context import DeploymentContext
from peagle.deploy.state import Resource, ResourceType, Revision
from peagle.errors import CloudError
from peagle.planning.plan import Plan
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.protocol import log_group
from peagle.render.alarms import alarms, all_alarm_names
from peagle.render.dashboard import (
    dashboard_body,
    dashboard_name,
    has_dashboard,
    log_retention_days,
)
from peagle.render.metrics import COMPONENT_DIMENSION, log_of, metric_filters, metric_namespace
from peagle.render.resources import (
    capture_rule,
    captured_prefix,
    copies_limit_name,
    limit_name,
    rule_id,
)
from peagle.s3uri import S3Uri
from peagle.text import json_object

Document = Mapping[str, Any]

_ALARM_KEYS = (
    "ActionsEnabled", "AlarmActions", "ComparisonOperator", "DatapointsToAlarm", "Dimensions",
    "EvaluationPeriods", "ExtendedStatistic", "MetricName", "Namespace", "OKActions", "Period",
    "Statistic", "Threshold", "TreatMissingData",
)  # fmt: skip


@dataclass(frozen=True)
class FieldDrift:
    """One field that differs: ``field`` is such as ``configuration.instance_type``; ``None`` is a
    value that is not set."""

    field: str
    planned: Any
    found: Any

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"field": self.field, "planned": self.planned, "found": self.found}


def differing(area: str, planned: Document, found: Document) -> Iterator[FieldDrift]:
    """The keys that differ."""
    for key in dict.fromkeys((*planned, *found)):
        if planned.get(key) != found.get(key):
            yield FieldDrift(f"{area}.{key}", planned.get(key), found.get(key))


def nested(field: str, planned: Any, found: Any) -> Iterator[FieldDrift]:
    """The leaves that differ. What AWS adds to a mapping that the plan has is not a difference."""
    if isinstance(planned, Mapping) and isinstance(found, Mapping):
        for key, value in planned.items():
            yield from nested(f"{field}.{key}", value, found.get(key))
    elif isinstance(planned, list) and isinstance(found, list) and len(planned) == len(found):
        for at, pair in enumerate(zip(planned, found, strict=True)):
            yield from nested(f"{field}[{at}]", *pair)
    elif planned != found and not (planned is None and not found):
        yield FieldDrift(field, planned, found)


@dataclass(frozen=True)
class Applied:
    """A plan as it is applied: the command's context, and the plan's revision."""

    context: DeploymentContext
    plan: Plan
    revision: Revision


class Kind:
    """One kind of resource. ``type`` is that of its records; empty for what is not recorded.
    ``path`` is how the fields of one begin, ``missing`` the field of one that does not exist."""

    type: ClassVar[ResourceType | None] = None
    path: ClassVar[str]
    missing: ClassVar[str] = ""

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Document]:
        """Name -> document of what the plan wants, as that revision."""
        return {}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        """Name -> document of those that the account has. Raises AccessDenied."""
        return {}

    def put(self, applied: Applied, name: str, document: Document) -> None:
        """Create it, or make it equal to the document."""

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        """Remove it; ignores one that does not exist."""

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        """The names of those that the endpoint has, which another machine may have made: they carry
        no tags that AWS would find, but their names are known. Raises AccessDenied."""
        yield from ()

    def is_stale(self, plan: Plan, name: str) -> bool:
        """Whether one that is on record goes, as this plan does not want it."""
        return name not in self.desired(plan, "")

    def compare(self, name: str, desired: Document, actual: Document) -> Iterator[FieldDrift]:
        """The fields that differ."""
        return nested(self.path.format(name), desired, actual)


class Log(Kind):
    """How long the engine's log is kept. It is created first: a new endpoint has none. A plan that
    does not say it keeps what is set."""

    path = "log"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Document]:
        days = log_retention_days(plan)
        return {} if days is None else {log_of(plan): {"retention_days": days}}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        return {name: {"retention_days": cloudwatch.log_retention(aws, name)} for name in names}

    def put(self, applied: Applied, name: str, document: Document) -> None:
        context = applied.context
        cloudwatch.create_log_group(context.aws, name, applied.plan.company.tags)
        context.aws.call(
            "logs",
            "put_retention_policy",
            logGroupName=name,
            retentionInDays=document["retention_days"],
        )


class Dashboard(Kind):
    """The dashboard of the endpoint."""

    type = "Dashboard"
    path = missing = "dashboard"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Document]:
        if not has_dashboard(plan):
            return {}
        return {dashboard_name(plan.name, plan.region): dashboard_body(plan)}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        texts = {name: cloudwatch.dashboard_text(aws, name) for name in names}
        return {name: json_object(text) for name, text in texts.items() if text is not None}

    def put(self, applied: Applied, name: str, document: Document) -> None:
        context = applied.context
        with context.creating(applied.revision.resource("Dashboard", name)):
            context.say("Creating dashboard", name)
            cloudwatch.put_dashboard(context.aws, name, document)

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        cloudwatch.delete_dashboards(context.aws, [resource.name])

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        name = dashboard_name(endpoint, aws.region)
        text = cloudwatch.dashboard_text(aws, name)
        if text is not None and f'"{endpoint}"' in text:  # that of peagle-tiny is not tiny's
            yield name

    def compare(self, name: str, desired: Document, actual: Document) -> Iterator[FieldDrift]:
        return nested("dashboard", json_object(json.dumps(desired)), actual)


class CaptureRule(Kind):
    """The rule of the bucket that deletes captured data. It stays when a later plan captures
    nothing, or elsewhere: what was captured is deleted as promised. It goes when the plan leaves
    captured data to the bucket, and with the deployment."""

    type = "LifecycleRule"
    path, missing = "captured", "captured.rule"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Document]:
        captured = capture_rule(plan)
        return {captured[0].uri: captured[1]} if captured else {}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        rules = {}
        for name in names:
            prefix = S3Uri.parse(name)
            rule_name = rule_id(plan.name, plan.region, prefix)
            rule = s3.own_lifecycle_rule(aws, prefix.bucket, rule_name)
            if rule and "Filter" not in rule:  # among rules of S3's earlier form
                rule = {**rule, "Filter": {"Prefix": rule.get("Prefix")}}
            if rule:
                rules[name] = rule
        return rules

    def put(self, applied: Applied, name: str, document: Document) -> None:
        context = applied.context
        bucket = S3Uri.parse(name).bucket
        try:
            with context.creating(applied.revision.resource("LifecycleRule", name)):
                days = document["Expiration"]["Days"]
                context.say("Limiting captured data", f"{name}: {days} days")
                s3.put_lifecycle_rule(context.aws, bucket, dict(document))
        except AccessDenied as error:
            raise AccessDenied(
                f"{error.message} (the lifecycle of {bucket}, for capture_retention)",
                "ask for a policy that allows s3:GetLifecycleConfiguration and "
                f"s3:PutLifecycleConfiguration on arn:aws:s3:::{bucket}, or leave it to the bucket "
                "with capture_retention 0",
                error.code,
            ) from error

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        prefix, record = S3Uri.parse(resource.name), context.record
        name = rule_id(record.name, context.aws.region, prefix)
        s3.remove_lifecycle_rule(context.aws, prefix.bucket, name)

    def is_stale(self, plan: Plan, name: str) -> bool:
        capture = plan.observe.capture if plan.observe else None
        if capture is None or capture_rule(plan) is not None:
            return False
        return name == captured_prefix(capture.s3_uri, plan.name).uri

    @staticmethod
    def of_config(aws: Aws, endpoint: str, config: Document) -> str | None:
        """The rule for what this configuration captures; ``None`` without one, or where it may not
        be looked at."""
        uri = (config.get("DataCaptureConfig") or {}).get("DestinationS3Uri") or ""
        with suppress(CloudError, ValueError):
            prefix = captured_prefix(uri, endpoint)
            if s3.own_lifecycle_rule(aws, prefix.bucket, rule_id(endpoint, aws.region, prefix)):
                return prefix.uri
        return None


class MetricFilter(Kind):
    """A filter of the log that counts what the acceptance alarm watches."""

    type = "MetricFilter"
    path = missing = "metric_filter.{}"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Document]:
        return {str(each["filterName"]): each for each in metric_filters(plan)}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        listed = (cloudwatch.described_filters(aws, log_of(plan), name) for name in names)
        return {str(each["filterName"]): each for found in listed for each in found}

    def put(self, applied: Applied, name: str, document: Document) -> None:
        context = applied.context
        with context.creating(applied.revision.resource("MetricFilter", name)):
            context.say("Creating metric filter", name)
            cloudwatch.put_metric_filter(context.aws, document, applied.plan.company.tags)

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        for group in _logs(context.record.name):
            cloudwatch.delete_metric_filter(context.aws, group, resource.name)

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        listed = [
            each
            for group in _logs(endpoint)
            for each in cloudwatch.described_filters(aws, group, DEFAULT_PREFIX)
        ]
        yield from sorted({str(each["filterName"]) for each in listed})

    def compare(self, name: str, desired: Document, actual: Document) -> Iterator[FieldDrift]:
        for key in ("filterPattern", "metricTransformations"):
            yield from nested(f"metric_filter.{name}.{key}", desired[key], actual.get(key))


class Alarm(Kind):
    """An alarm of the plan. It exists before the update that it watches."""

    type = "Alarm"
    path = missing = "alarm.{}"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Document]:
        return {alarm["AlarmName"]: alarm for alarm in alarms(plan, revision)}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        return {one["AlarmName"]: one for one in cloudwatch.described_alarms(aws, list(names))}

    def put(self, applied: Applied, name: str, document: Document) -> None:
        context = applied.context
        tags = [*document["Tags"], {"Key": ID_TAG, "Value": context.record.id}]
        with context.creating(applied.revision.resource("Alarm", name)):
            context.say("Creating alarm", name)
            cloudwatch.put_metric_alarm(context.aws, {**document, "Tags": tags})

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        cloudwatch.delete_alarms(context.aws, [resource.name])

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        for alarm in cloudwatch.described_alarms(aws, all_alarm_names(endpoint)):
            # tiny and peagle-tiny name theirs alike.
            dimensions = {(one["Name"], one["Value"]) for one in alarm.get("Dimensions") or ()}
            stats = (one.get("MetricStat") or {} for one in alarm.get("Metrics") or ())
            namespaces = {(one.get("Metric") or {}).get("Namespace") for one in stats}
            named = {("EndpointName", endpoint), (COMPONENT_DIMENSION, endpoint)} & dimensions
            if named or metric_namespace(endpoint) in namespaces:
                yield alarm["AlarmName"]

    def compare(self, name: str, desired: Document, actual: Document) -> Iterator[FieldDrift]:
        sides = [
            {key: _plain({"ActionsEnabled": True, **side}.get(key)) for key in _ALARM_KEYS}
            for side in (desired, actual)
        ]
        yield from differing(f"alarm.{name}", *sides)
        yield from nested(f"alarm.{name}.Metrics", desired.get("Metrics"), actual.get("Metrics"))


class Schedule(Kind):
    """A schedule of EventBridge that deletes the endpoint at its end, or its copies before."""

    type = "Schedule"
    path = missing = "schedule.{}"

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Document]:
        schedules = {name: scheduler.described_schedule(aws, name) for name in names}
        return {name: schedule for name, schedule in schedules.items() if schedule is not None}

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        scheduler.delete_schedule(context.aws, resource.name)


class SchedulerRole(Kind):
    """The role with which the schedules do so."""

    type = "SchedulerRole"

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        scheduler.delete_role(context.aws, resource.name)


class Objects(Kind):
    """Uploaded weights."""

    type = "S3Objects"

    def delete(self, context: DeploymentContext, resource: Resource) -> None:
        s3.delete_objects(context.aws, S3Uri.parse(resource.name).bucket, resource.keys)


LOG, DASHBOARD, CAPTURE, FILTERS, ALARMS = (
    Log(), Dashboard(), CaptureRule(), MetricFilter(), Alarm(),
)  # fmt: skip
SCHEDULE = Schedule()
SETTINGS: tuple[Kind, ...] = (LOG, DASHBOARD, CAPTURE, FILTERS, ALARMS)
"""What a plan sets, in the order in which it is applied."""

KINDS: Mapping[ResourceType, Kind] = {
    kind.type: kind
    for kind in (*SETTINGS, SCHEDULE, SchedulerRole(), Objects())
    if kind.type is not None
}


def put_settings(
    context: DeploymentContext,
    plan: Plan,
    revision: Revision,
    kinds: Collection[Kind] = SETTINGS,
) -> None:
    """Apply what the plan sets of these kinds, and remove what an earlier plan set and this one
    does not. Raises AccessDenied where the bucket's lifecycle may not be changed."""
    applied = Applied(context, plan, revision)
    for kind in kinds:
        for name, document in kind.desired(plan, revision.name).items():
            kind.put(applied, name, document)
    for kind in (DASHBOARD, CAPTURE, ALARMS, FILTERS):  # an alarm before what it watches
        for resource in context.record.of_type(kind.type) if kind in kinds and kind.type else ():
            if kind.is_stale(plan, resource.name):
                delete(context, resource)


def delete(context: DeploymentContext, resource: Resource) -> None:
    """Remove the resource and its entry in the record."""
    context.say("Removing", resource.text)
    KINDS[resource.type].delete(context, resource)
    context.write(context.record.without(resource.type, resource.name))


def differences(
    kind: Kind, aws: Aws, plan: Plan, desired: Mapping[str, Document]
) -> Iterator[FieldDrift]:
    """Where the account differs from ``desired``; further resources are others'."""
    actual = kind.read(aws, plan, tuple(desired)) if desired else {}
    for name, document in desired.items():
        if name in actual:
            yield from kind.compare(name, document, actual[name])
        else:
            yield FieldDrift(kind.missing.format(name), "exists", None)


def found_resources(
    aws: Aws, name: str, revision: str, configs: Collection[tuple[Document, str]]
) -> Iterator[Resource]:
    """What the endpoint has outside, as of the revision in service; the rules for what the
    ``configs`` capture, each with its revision. What may not be looked at is left out."""
    for kind in (ALARMS, FILTERS, DASHBOARD):
        with suppress(AccessDenied):
            for found in kind.find(aws, name):
                assert kind.type is not None
                yield Resource(type=kind.type, name=found, made=True, revision=revision)
    for config, fingerprint in configs:
        if uri := CaptureRule.of_config(aws, name, config):
            yield Resource(type="LifecycleRule", name=uri, made=True, revision=fingerprint)


def schedule_names(region: str, name: str, copies: bool) -> tuple[str, ...]:
    """The schedules of an endpoint with an end."""
    first = (copies_limit_name(region, name),) if copies else ()
    return (*first, limit_name(region, name))


def _logs(name: str) -> tuple[str, str]:
    """The log groups that the endpoint may have: its own, or that of its copies."""
    return log_group(name), log_group(name, copies=True)


def _plain(value: Any) -> Any:
    """Dimensions, and actions, in any order are the same; none are as if not set."""
    if not isinstance(value, list):
        return value
    if all(isinstance(one, str) for one in value):
        return sorted(value) or None
    return {one["Name"]: one["Value"] for one in value}
