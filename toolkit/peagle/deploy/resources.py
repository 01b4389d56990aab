"""What a deployment has in the account: one class per kind of resource.

A kind says what a plan wants (``desired``), what the account has (``read``, ``find``), and makes
the second the first (``put``, ``remove``). ``put_settings`` is the loop that applies what a plan
sets outside of its endpoint; ``differences`` is the comparison that drift shows; ``delete`` removes
what is on record. Each call may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from peagle.aws import autoscaling, cloudwatch, s3, sagemaker, scheduler
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Busy
from peagle.aws.sagemaker import BUSY, ID_TAG, Endpoint, ResourceKind, Tag
from peagle.deploy.context import DeploymentContext, wait_while_busy
from peagle.deploy.state import Resource, ResourceType, Revision
from peagle.errors import CloudError, Fix, Refused
from peagle.planning.company import NO_COMPANY, Company
from peagle.planning.plan import Plan, Scaling
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.protocol import log_group
from peagle.render import alarms
from peagle.render.dashboard import (
    dashboard_body,
    dashboard_name,
    has_dashboard,
    log_retention_days,
)
from peagle.render.resources import (
    capture_rule,
    captured_prefix,
    copies_limit_name,
    limit_name,
    rule_id,
)
from peagle.s3uri import S3Uri
from peagle.text import json_object

Body = Mapping[str, Any]

SCALING_TAG = "peagle:scaling"
"""Tag of an endpoint configuration: what other machines need to return to it."""

_ALARM_KEYS = (
    "ActionsEnabled", "AlarmActions", "ComparisonOperator", "DatapointsToAlarm", "Dimensions",
    "EvaluationPeriods", "ExtendedStatistic", "MetricName", "Namespace", "OKActions", "Period",
    "Statistic", "Threshold", "TreatMissingData",
)  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """A field of a resource: what the plan wants, and what the account has."""

    field: str
    planned: Any
    found: Any


def differing(area: str, planned: Body, actual: Body) -> Iterator[Difference]:
    """The keys that differ."""
    for key in dict.fromkeys((*planned, *actual)):
        if planned.get(key) != actual.get(key):
            yield Difference(f"{area}.{key}", planned.get(key), actual.get(key))


def nested(path: str, planned: Any, actual: Any) -> Iterator[Difference]:
    """The leaves that differ. What AWS adds to a mapping that the plan has is not a difference."""
    if isinstance(planned, Mapping) and isinstance(actual, Mapping):
        for key, value in planned.items():
            yield from nested(f"{path}.{key}", value, actual.get(key))
    elif isinstance(planned, list) and isinstance(actual, list) and len(planned) == len(actual):
        for at, pair in enumerate(zip(planned, actual, strict=True)):
            yield from nested(f"{path}[{at}]", *pair)
    elif planned != actual and not (planned is None and not actual):
        yield Difference(path, planned, actual)


class Kind:
    """One kind of resource. ``path`` is how the fields of one begin, ``missing`` the field of one
    that does not exist."""

    type: ClassVar[ResourceType]
    noun: ClassVar[str] = ""
    path: ClassVar[str]
    missing: ClassVar[str] = ""

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Body]:
        """Name -> document of what the plan wants, as that revision."""
        return {}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        """Name -> document of those that the account has. Raises AccessDenied."""
        return {}

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        """Create it, or make it equal to ``body``; it is on record before and after."""
        with context.creating(revision.resource(self.type, name)):
            context.say(f"Creating {self.noun}", name)
            self.create(context, revision, name, body)

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        """The call of AWS."""

    def remove(self, context: DeploymentContext, resource: Resource) -> bool | None:
        """Remove it; ignores one that does not exist. ``False`` if it was not ours to remove."""

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        """The names of those that the endpoint has, which another machine may have made: they carry
        no tags that AWS would find, but their names are known. Raises AccessDenied."""
        yield from ()

    def is_stale(self, plan: Plan, name: str) -> bool:
        """Whether one that is on record goes, as this plan does not want it."""
        return name not in self.desired(plan, "")

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Difference]:
        """The fields that differ."""
        return nested(self.path.format(name), desired, actual)


class Log(Kind):
    """How long the engine's log is kept. It is created first: a new endpoint has none. A plan that
    does not say it keeps what is set."""

    path = "log"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Body]:
        days = log_retention_days(plan)
        return {} if days is None else {alarms.log_of(plan): {"retention_days": days}}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        return {name: {"retention_days": cloudwatch.log_retention(aws, name)} for name in names}

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        cloudwatch.create_log_group(context.aws, name, read_company(revision).tags)
        days = body["retention_days"]
        context.aws.call("logs", "put_retention_policy", logGroupName=name, retentionInDays=days)


class Dashboard(Kind):
    """The dashboard of the endpoint."""

    type, noun = "Dashboard", "dashboard"
    path = missing = "dashboard"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Body]:
        if not has_dashboard(plan):
            return {}
        body = json_object(json.dumps(dashboard_body(plan)))
        return {dashboard_name(plan.name, plan.region): body}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        texts = {name: self._text(aws, name) for name in names}
        return {name: json_object(text) for name, text in texts.items() if text}

    def _text(self, aws: Aws, name: str) -> str:
        response = aws.find("cloudwatch", "get_dashboard", DashboardName=name)
        return response["DashboardBody"] if response else ""

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        text = json.dumps(body)
        context.aws.call("cloudwatch", "put_dashboard", DashboardName=name, DashboardBody=text)

    def remove(self, context: DeploymentContext, resource: Resource) -> None:
        context.aws.delete("cloudwatch", "delete_dashboards", DashboardNames=[resource.name])

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        name = dashboard_name(endpoint, aws.region)
        if f'"{endpoint}"' in self._text(aws, name):  # that of peagle-tiny is not tiny's
            yield name


class CaptureRule(Kind):
    """The rule of the bucket that deletes captured data. It stays when a later plan captures
    nothing, or elsewhere: what was captured is deleted as promised. It goes when the plan leaves
    captured data to the bucket, and with the deployment."""

    type = "LifecycleRule"
    path, missing = "captured", "captured.rule"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Body]:
        captured = capture_rule(plan)
        return {captured[0].uri: captured[1]} if captured else {}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        rules = {}
        for name in names:
            prefix = S3Uri.parse(name)
            rule_name = rule_id(plan.name, plan.region, prefix)
            if rule := s3.own_lifecycle_rule(aws, prefix.bucket, rule_name):
                # Among rules of S3's earlier form, it has its prefix outside of a filter.
                rules[name] = {"Filter": {"Prefix": rule.get("Prefix")}, **rule}
        return rules

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        with context.creating(revision.resource("LifecycleRule", name)):
            context.say("Limiting captured data", f"{name}: {body['Expiration']['Days']} days")
            s3.put_lifecycle_rule(context.aws, S3Uri.parse(name).bucket, dict(body))

    def remove(self, context: DeploymentContext, resource: Resource) -> None:
        prefix, record = S3Uri.parse(resource.name), context.record
        name = rule_id(record.name, context.aws.region, prefix)
        s3.remove_lifecycle_rule(context.aws, prefix.bucket, name)

    def is_stale(self, plan: Plan, name: str) -> bool:
        capture = plan.observe.capture if plan.observe else None
        if capture is None or capture_rule(plan) is not None:
            return False
        return name == captured_prefix(capture.s3_uri, plan.name).uri


class MetricFilter(Kind):
    """A filter of the log that counts what the acceptance alarm watches."""

    type, noun = "MetricFilter", "metric filter"
    path = missing = "metric_filter.{}"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Body]:
        return {str(each["filterName"]): each for each in alarms.metric_filters(plan)}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        listed = (cloudwatch.described_filters(aws, alarms.log_of(plan), name) for name in names)
        return {str(each["filterName"]): each for filters in listed for each in filters}

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        cloudwatch.put_metric_filter(context.aws, body, read_company(revision).tags)

    def remove(self, context: DeploymentContext, resource: Resource) -> None:
        for group in name_log_groups(context.record.name):
            place = {"logGroupName": group, "filterName": resource.name}
            context.aws.delete("logs", "delete_metric_filter", **place)

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        names = {
            str(each["filterName"])
            for group in name_log_groups(endpoint)
            for each in cloudwatch.described_filters(aws, group, DEFAULT_PREFIX)
        }
        yield from sorted(names)

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Difference]:
        for key in ("filterPattern", "metricTransformations"):
            yield from nested(f"metric_filter.{name}.{key}", desired[key], actual.get(key))


class Alarm(Kind):
    """An alarm of the plan. It exists before the update that it watches."""

    type, noun = "Alarm", "alarm"
    path = missing = "alarm.{}"

    def desired(self, plan: Plan, revision: str) -> Mapping[str, Body]:
        return {alarm["AlarmName"]: alarm for alarm in alarms.alarms(plan, revision)}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        described = cloudwatch.described_alarms(aws, list(names))
        return {alarm["AlarmName"]: alarm for alarm in described}

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        tags = [*body["Tags"], {"Key": ID_TAG, "Value": context.record.id}]
        context.aws.call("cloudwatch", "put_metric_alarm", **{**body, "Tags": tags})

    def remove(self, context: DeploymentContext, resource: Resource) -> None:
        context.aws.delete("cloudwatch", "delete_alarms", AlarmNames=[resource.name])

    def find(self, aws: Aws, endpoint: str) -> Iterator[str]:
        for alarm in cloudwatch.described_alarms(aws, alarms.all_alarm_names(endpoint)):
            # tiny and peagle-tiny name theirs alike.
            dimensions = {(each["Name"], each["Value"]) for each in alarm.get("Dimensions") or ()}
            stats = (metric.get("MetricStat") or {} for metric in alarm.get("Metrics") or ())
            namespaces = {(stat.get("Metric") or {}).get("Namespace") for stat in stats}
            named = {
                ("EndpointName", endpoint),
                (alarms.COMPONENT_DIMENSION, endpoint),
            } & dimensions
            if named or alarms.metric_namespace(endpoint) in namespaces:
                yield alarm["AlarmName"]

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Difference]:
        def plain(value: Any) -> Any:
            """Dimensions, and actions, in any order are the same; none are as if not set."""
            if not isinstance(value, list):
                return value
            if all(isinstance(action, str) for action in value):
                return sorted(value) or None
            return {dimension["Name"]: dimension["Value"] for dimension in value}

        sides = [
            {key: plain({"ActionsEnabled": True, **side}.get(key)) for key in _ALARM_KEYS}
            for side in (desired, actual)
        ]
        yield from differing(f"alarm.{name}", *sides)
        yield from nested(f"alarm.{name}.Metrics", desired.get("Metrics"), actual.get("Metrics"))


class Schedule(Kind):
    """A schedule of EventBridge that deletes the endpoint at its end, or its copies before."""

    path = missing = "schedule.{}"

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        schedules = {name: aws.find("scheduler", "get_schedule", Name=name) for name in names}
        return {name: schedule for name, schedule in schedules.items() if schedule is not None}

    def remove(self, context: DeploymentContext, resource: Resource) -> None:
        context.aws.delete("scheduler", "delete_schedule", Name=resource.name)


class Removed(Kind):
    """What is put with what it belongs to: the role of the schedules, and uploaded weights."""

    def __init__(self, call: Callable[[Aws, Resource], object]) -> None:
        self.call = call

    def remove(self, context: DeploymentContext, resource: Resource) -> None:
        self.call(context.aws, resource)


class Bucket(Kind):
    """The bucket of uploaded weights. It goes if a deploy created it, and it is empty."""

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        resource = revision.resource("S3Bucket", name)
        recorded = [each for each in context.record.of_type("S3Bucket") if each.name == name]
        interrupted = any(not each.made for each in recorded)
        if s3.bucket_exists(context.aws, name) and not interrupted:
            with suppress(AccessDenied):  # then it is not removed later
                if s3.is_our_bucket(context.aws, name):  # that of another deploy
                    made = resource.model_copy(update={"made": True})
                    context.write(context.record.with_resource(made))
            return
        with context.creating(resource):
            context.say("Creating bucket", name)
            s3.create_bucket(context.aws, name, read_company(revision).tag_list)

    def remove(self, context: DeploymentContext, resource: Resource) -> bool:
        try:
            exists = s3.bucket_exists(context.aws, resource.name)
        except Refused as error:
            if error.code == s3.BUCKET_DENIED:
                fix = "ask for a policy that allows s3:ListBucket"
                raise AccessDenied(error.message, fix) from error
            return False
        ours = not resource.made or not exists or s3.is_our_bucket(context.aws, resource.name)
        return ours and s3.delete_bucket(context.aws, resource.name)


class OfSageMaker(Kind):
    """What SageMaker serves: a model, a configuration. One of our name without the deployment's id
    belongs to another owner."""

    def __init__(self, kind: ResourceKind, noun: str) -> None:
        self.kind, self.name = kind, noun

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        with context.creating(revision.resource(self.kind, name)):
            context.say(f"Creating {self.name}", name)
            tags = [revision.tag]
            if self.kind == "EndpointConfig" and revision.plan:
                tags.append(scaling_tag(revision.plan.scaling))
            sagemaker.create(context.aws, self.kind, name, dict(body), context.record.id, tags)

    def remove(self, context: DeploymentContext, resource: Resource) -> bool:
        owner = sagemaker.owner(context.aws, self.kind, resource.name)
        # What a template left carries no deployment id.
        if owner not in (None, context.record.id) and not (context.record.owner and owner == ""):
            return False
        if self.kind != "Endpoint":
            sagemaker.delete(context.aws, self.kind, resource.name)
            return True
        try:
            if live := sagemaker.describe(context.aws, resource.name):
                delete_endpoint(context, live)
        except Busy as error:
            message = f"another client is changing endpoint {resource.name}: {error.message}"
            fix = Fix("try again in a minute", ("peagle", "destroy", resource.name))
            raise CloudError(message, fix, "endpoint-not-deleted") from error
        return True


def scaling_tag(scaling: Scaling | None) -> Tag:
    """The tag of a configuration with the scaling of its plan: bounds, target and cooldowns."""
    numbers = scaling.model_dump(exclude_none=True).values() if scaling else ("none",)
    return {"Key": SCALING_TAG, "Value": "/".join(map(str, numbers))}


def delete_endpoint(context: DeploymentContext, live: Endpoint) -> None:
    """Delete the endpoint with its copies, after the end of a change, and wait until it is gone."""
    revision, name, since = context.record.current, live.name, context.clock.now()
    left: Endpoint | None = live
    if live.component is not None:
        with suppress(AccessDenied):  # DeleteEndpoint reports what is in its way
            autoscaling.deregister(context.aws, name, copies=True)
    while left and left.component is not None:
        if left.component.status != "Deleting":
            try:
                component = {"InferenceComponentName": name}
                context.aws.delete("sagemaker", "delete_inference_component", **component)
            except Busy:
                purpose = "Waiting for the copies' current change to end"
                wait_while_busy(context, revision, since, purpose=purpose)
        left = wait_while_busy(context, revision, since, purpose="Removing copies")
    since = context.clock.now()
    is_deleting = left is not None and left.status == "Deleting"
    if left and left.status == "Creating":
        is_deleting = begin_deletion(context, left)
    if left and left.status in BUSY and not is_deleting:
        purpose = "Waiting for the endpoint's current change to end"
        left = wait_while_busy(context, revision, since, purpose=purpose)
    if left is None:
        return
    if not is_deleting:
        with suppress(AccessDenied):
            autoscaling.deregister(context.aws, name)
        sagemaker.delete(context.aws, "Endpoint", name)
    left = wait_while_busy(context, revision, since)
    if left is not None:
        fix = Fix("run the command again", ("peagle", "destroy", name))
        message = f"endpoint {name} was not deleted: {left.status} {left.failure or ''}"
        raise CloudError(message, fix, "endpoint-not-deleted")
    context.change(billing_since=None)


def begin_deletion(context: DeploymentContext, live: Endpoint) -> bool:
    """Request the deletion of an endpoint that is being created; whether SageMaker begins it, which
    is not documented."""
    with suppress(Busy):
        sagemaker.delete(context.aws, "Endpoint", live.name)
    now = sagemaker.describe(context.aws, live.name)
    return now is None or now.status == "Deleting"


LOG, DASHBOARD, CAPTURE, FILTERS, ALARMS = (
    Log(), Dashboard(), CaptureRule(), MetricFilter(), Alarm(),
)  # fmt: skip
SCHEDULE, BUCKET = Schedule(), Bucket()
MODEL = OfSageMaker("Model", "model")
CONFIG = OfSageMaker("EndpointConfig", "endpoint configuration")
SETTINGS: tuple[Kind, ...] = (LOG, DASHBOARD, CAPTURE, FILTERS, ALARMS)
"""What a plan sets outside of its endpoint, in the order in which it is applied."""

KINDS: Mapping[ResourceType, Kind] = {
    "Endpoint": OfSageMaker("Endpoint", "endpoint"),
    "Schedule": SCHEDULE,
    "SchedulerRole": Removed(lambda aws, role: scheduler.delete_role(aws, role.name)),
    "Alarm": ALARMS,
    "MetricFilter": FILTERS,
    "Dashboard": DASHBOARD,
    "LifecycleRule": CAPTURE,
    "EndpointConfig": CONFIG,
    "Model": MODEL,
    "S3Objects": Removed(
        lambda aws, each: s3.delete_objects(aws, S3Uri.parse(each.name).bucket, each.keys)
    ),
    "S3Bucket": BUCKET,
}
"""In the order of removal: an endpoint needs its configuration while it exists, and the
configuration its model."""


def put_settings(
    context: DeploymentContext, revision: Revision, kinds: Collection[Kind] = SETTINGS
) -> None:
    """Apply what the revision's plan sets of these kinds, and remove what only an earlier plan
    set."""
    plan = revision.plan
    assert plan is not None
    for kind in kinds:
        for name, document in kind.desired(plan, revision.name).items():
            kind.put(context, revision, name, document)
    for kind in (DASHBOARD, CAPTURE, ALARMS, FILTERS):  # an alarm before what it watches
        for resource in context.record.of_type(kind.type) if kind in kinds else ():
            if kind.is_stale(plan, resource.name):
                delete(context, resource)


def delete(context: DeploymentContext, resource: Resource) -> bool:
    """Remove the resource and its entry in the record; whether it was ours to remove. Raises
    AccessDenied when it may not be looked at: its entry stays."""
    context.say("Removing", resource.text)
    removed = KINDS[resource.type].remove(context, resource)
    context.write(context.record.without(resource.type, resource.name))
    return removed is not False


def differences(
    kind: Kind, aws: Aws, plan: Plan, desired: Mapping[str, Body]
) -> Iterator[Difference]:
    """Where the account differs from ``desired``; further resources are others'."""
    actual = kind.read(aws, plan, tuple(desired)) if desired else {}
    for name, document in desired.items():
        if name in actual:
            yield from kind.compare(name, document, actual[name])
        else:
            yield Difference(kind.missing.format(name), "exists", None)


def found_resources(
    aws: Aws, name: str, revision: str, configs: Collection[tuple[Body, str]]
) -> Iterator[Resource]:
    """What the endpoint has outside, as of the revision in service, as far as it may be read; the
    rules for what the ``configs`` capture, each with its revision."""
    for kind in (ALARMS, FILTERS, DASHBOARD):
        with suppress(AccessDenied):
            for resource_name in kind.find(aws, name):
                yield Resource(type=kind.type, name=resource_name, made=True, revision=revision)
    for config, fingerprint in configs:
        uri = (config.get("DataCaptureConfig") or {}).get("DestinationS3Uri") or ""
        with suppress(CloudError, ValueError):
            prefix = captured_prefix(uri, name)
            if s3.own_lifecycle_rule(aws, prefix.bucket, rule_id(name, aws.region, prefix)):
                yield Resource(
                    type="LifecycleRule", name=prefix.uri, made=True, revision=fingerprint
                )


def schedule_names(region: str, name: str, copies: bool) -> tuple[str, ...]:
    """The schedules of an endpoint with an end."""
    first = (copies_limit_name(region, name),) if copies else ()
    return (*first, limit_name(region, name))


def name_log_groups(name: str) -> tuple[str, str]:
    """The log groups that the endpoint may have: its own, or that of its copies."""
    return log_group(name), log_group(name, copies=True)


def read_company(revision: Revision) -> Company:
    return revision.plan.company if revision.plan else NO_COMPANY
