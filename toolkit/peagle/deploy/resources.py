"""What a deployment has in the account: one class per kind of resource (``kinds``), in the order of
removal in ``KINDS``.

``put_settings`` applies what a plan sets outside of its endpoint, and ``remove`` removes what is on
record. Each call may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from peagle.aws import autoscaling, s3, sagemaker
from peagle.aws.client import Aws, send_until_visible
from peagle.aws.errors import AccessDenied, AlreadyExists, Busy, Missing
from peagle.aws.sagemaker import BUSY, ID_TAG, Endpoint, ResourceKind
from peagle.deploy.context import DeploymentContext, wait_while_busy
from peagle.deploy.diff import Change
from peagle.deploy.kinds import (
    AppliedPlan,
    Body,
    Kind,
    TaggedDeployment,
    compare_keys,
    compare_leaves,
)
from peagle.deploy.state import Resource, ResourceType, Revision, parse_values, utc_text
from peagle.errors import CloudError, Fix, Refused
from peagle.planning.company import NO_COMPANY, Company, role_parameters
from peagle.planning.operation import COPIES_BEFORE_SECONDS
from peagle.planning.plan import Plan, Scaling
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.planning.weights import UPLOAD_FOLDER
from peagle.protocol import log_group
from peagle.render import alarms
from peagle.render.dashboard import (
    dashboard_body,
    dashboard_name,
    has_dashboard,
    log_retention_days,
)
from peagle.render.requests import DEPLOYMENT_TAG
from peagle.render.resources import (
    COPY_DIMENSION,
    DIMENSION,
    END_POLICY,
    SERVICE_NAMESPACE,
    capture_rule,
    captured_prefix,
    copies_id,
    copies_limit_name,
    limit_name,
    role_policy,
    rule_id,
    schedule,
    target_arn,
    trust_policy,
    wake_alarm_name,
)
from peagle.s3uri import S3Uri
from peagle.text import counted, json_object
from peagle.weights.bucket import Bucket as S3Bucket
from peagle_serve.contract import is_s3_uri

_SCALING = "application-autoscaling"

_ASSUMED_AFTER_SECONDS = (2.0, 4.0, 8.0, 15.0, 15.0)
"""Pauses in which the scheduler becomes able to assume a role that was created a moment ago."""

_ALARM_KEYS = (
    "ActionsEnabled", "AlarmActions", "ComparisonOperator", "DatapointsToAlarm", "Dimensions",
    "EvaluationPeriods", "ExtendedStatistic", "MetricName", "Namespace", "OKActions", "Period",
    "Statistic", "Threshold", "TreatMissingData",
)  # fmt: skip


class Log(Kind):
    """How long the engine's log is kept. It is created first: a new endpoint has none. A plan that
    does not say it keeps what is set."""

    type = "LogGroup"
    area = path = "log"

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        days = log_retention_days(applied.plan)
        return {} if days is None else {alarms.log_of(applied.plan): {"retention_days": days}}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        days = {name: [log.get("retentionInDays") for log in _logs(aws, name)] for name in names}
        return {name: {"retention_days": next(iter(each), None)} for name, each in days.items()}

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        _create_log(context.aws, name, revision)
        days = body["retention_days"]
        context.aws.call("logs", "put_retention_policy", logGroupName=name, retentionInDays=days)

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        aws.delete("logs", "delete_log_group", logGroupName=resource.name)

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        for group in name_log_groups(tagged.name):
            yield from (self.resource(group) for _ in _logs(aws, group))


def _logs(aws: Aws, name: str) -> list[Body]:
    """The log group of that name, as DescribeLogGroups has it, if there is one."""
    groups = aws.items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=name)
    return [log for log in groups if log["logGroupName"] == name]


def _create_log(aws: Aws, name: str, revision: Revision) -> None:
    tags = read_company(revision).tags
    with suppress(AlreadyExists):
        aws.call("logs", "create_log_group", logGroupName=name, **({"tags": tags} if tags else {}))


class Dashboard(Kind):
    """The dashboard of the endpoint."""

    type, noun = "Dashboard", "dashboard"
    area = path = "dashboard"

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        plan = applied.plan
        if not has_dashboard(plan):
            return {}
        body = json_object(json.dumps(dashboard_body(plan)))
        return {dashboard_name(plan.name, plan.region): body}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        dashboards = {n: aws.find("cloudwatch", "get_dashboard", DashboardName=n) for n in names}
        return {
            name: json_object(each["DashboardBody"]) for name, each in dashboards.items() if each
        }

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        text = json.dumps(body)
        context.aws.call("cloudwatch", "put_dashboard", DashboardName=name, DashboardBody=text)

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        aws.delete("cloudwatch", "delete_dashboards", DashboardNames=[resource.name])

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        name = dashboard_name(tagged.name, aws.region)
        dashboard = aws.find("cloudwatch", "get_dashboard", DashboardName=name)
        # That of peagle-tiny is not tiny's.
        if dashboard and f'"{tagged.name}"' in dashboard["DashboardBody"]:
            yield self.resource(name, tagged.revision)


class CaptureRule(Kind):
    """The rule of the bucket that deletes captured data. It stays when a later plan captures
    nothing, or elsewhere: what was captured is deleted as promised. It goes when the plan leaves
    captured data to the bucket, and with the deployment."""

    type = "LifecycleRule"
    area = path = "captured"

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        captured = capture_rule(applied.plan)
        return {captured[0].uri: captured[1]} if captured else {}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        rules = {}
        for name in names:
            prefix = S3Uri.parse(name)
            rule_name = rule_id(plan.name, plan.region, prefix)
            if rule := s3.lifecycle_rules(aws, prefix.bucket).get(rule_name):
                rules[name] = rule
        return rules

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        with context.creating(revision.resource(self.type, name)):
            context.say("Limiting captured data", f"{name}: {body['Expiration']['Days']} days")
            s3.set_lifecycle_rule(context.aws, S3Uri.parse(name).bucket, body["ID"], body)

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        prefix = S3Uri.parse(resource.name)
        name = rule_id(endpoint, aws.region, prefix)
        s3.set_lifecycle_rule(aws, prefix.bucket, name, None)

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        for config, revision in tagged.configs:
            uri = (config.get("DataCaptureConfig") or {}).get("DestinationS3Uri") or ""
            with suppress(CloudError, ValueError):
                prefix = captured_prefix(uri, tagged.name)
                rule_name = rule_id(tagged.name, aws.region, prefix)
                if rule_name in s3.lifecycle_rules(aws, prefix.bucket):
                    yield self.resource(prefix.uri, revision)

    def is_stale(self, plan: Plan, name: str) -> bool:
        capture = plan.observe.capture if plan.observe else None
        if capture is None or capture_rule(plan) is not None:
            return False
        return name == captured_prefix(capture.s3_uri, plan.name).uri


class MetricFilter(Kind):
    """A filter of the log that counts what the acceptance alarm watches."""

    type, noun, area = "MetricFilter", "metric filter", "metric_filters"
    path = "metric_filter.{}"

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        return {str(each["filterName"]): each for each in alarms.metric_filters(applied.plan)}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        listed = (_filters(aws, alarms.log_of(plan), name) for name in names)
        return {str(each["filterName"]): each for filters in listed for each in filters}

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        try:
            context.aws.call("logs", "put_metric_filter", **body)
        except Missing:  # a new endpoint has no log yet
            _create_log(context.aws, body["logGroupName"], revision)
            context.aws.call("logs", "put_metric_filter", **body)

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        for group in name_log_groups(endpoint):
            place = {"logGroupName": group, "filterName": resource.name}
            aws.delete("logs", "delete_metric_filter", **place)

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        names = {
            str(each["filterName"])
            for group in name_log_groups(tagged.name)
            for each in _filters(aws, group, DEFAULT_PREFIX)
        }
        yield from (self.resource(name, tagged.revision) for name in sorted(names))

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Change]:
        for key in ("filterPattern", "metricTransformations"):
            yield from compare_leaves(f"metric_filter.{name}.{key}", desired[key], actual.get(key))


def _filters(aws: Aws, group: str, prefix: str) -> list[Body]:
    """The filters of the log whose names begin so; none where there is no such log."""
    with suppress(Missing):
        return list(
            aws.items(
                "logs", "describe_metric_filters", "metricFilters",
                logGroupName=group, filterNamePrefix=prefix,
            )
        )  # fmt: skip
    return []


class Alarm(Kind):
    """An alarm of the plan. It exists before the update that it watches."""

    type, noun, area = "Alarm", "alarm", "alarms"
    path = "alarm.{}"

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        listed = alarms.alarms(applied.plan, applied.revision)
        return {alarm["AlarmName"]: alarm for alarm in listed}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        return {alarm["AlarmName"]: alarm for alarm in _alarms(aws, names)}

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        tags = [*body["Tags"], {"Key": ID_TAG, "Value": context.record.id}]
        context.aws.call("cloudwatch", "put_metric_alarm", **{**body, "Tags": tags})

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        aws.delete("cloudwatch", "delete_alarms", AlarmNames=[resource.name])

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        name = tagged.name
        names = [alarms.alarm_name(name, kind) for kind in alarms.SUFFIXES]
        for alarm in _alarms(aws, names):
            # tiny and peagle-tiny name theirs alike.
            stats = (metric.get("MetricStat") or {} for metric in alarm.get("Metrics") or ())
            namespaces = {(stat.get("Metric") or {}).get("Namespace") for stat in stats}
            if _watches(alarm, name) or alarms.metric_namespace(name) in namespaces:
                yield self.resource(alarm["AlarmName"], tagged.revision)

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Change]:
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
        yield from compare_keys(f"alarm.{name}", *sides)
        yield from compare_leaves(
            f"alarm.{name}.Metrics", desired.get("Metrics"), actual.get("Metrics")
        )


def _alarms(aws: Aws, names: Collection[str]) -> list[Body]:
    """Those of the alarms that exist, as DescribeAlarms has them."""
    listed = aws.items("cloudwatch", "describe_alarms", "MetricAlarms", AlarmNames=list(names))
    return [alarm for alarm in listed if alarm["AlarmName"] in names]


def _watches(alarm: Body, endpoint: str) -> bool:
    """Whether a dimension of the alarm is the endpoint, or the copies on it."""
    dimensions = {(each["Name"], each["Value"]) for each in alarm.get("Dimensions") or ()}
    names = ("EndpointName", alarms.COMPONENT_DIMENSION)
    return not dimensions.isdisjoint((name, endpoint) for name in names)


class ScalingTarget(Kind):
    """The bounds of Application Auto Scaling, with the policies that hold them; none for a fixed
    number. It is not on record: it goes with the endpoint. A plan alone does not decide it, as
    ``peagle scale`` changes it, and it is put once the plan is proved (``scaling``)."""

    type = "ScalableTarget"
    area = path = "scaling"

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        scaling = applied.plan.scaling
        bounds = autoscaling.to_bounds(scaling) if scaling else None
        return {applied.plan.name: bounds.settings if bounds else {}}

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        registered = {name: autoscaling.registered(aws, name) for name in names}
        return {name: bounds.settings if bounds else {} for name, bounds in registered.items()}

    def register(self, context: DeploymentContext, after: Scaling | None) -> None:
        """Register the endpoint with this scaling, or end it. May be repeated."""
        aws, record, name = context.aws, context.record, context.record.name
        if after is None:
            live = sagemaker.describe(aws, name)
            copies = live is not None and live.hosts_components
            context.say("Scaling", f"ends; the number of {counted(2, copies)} stays")
            autoscaling.deregister(aws, name, copies)
            return
        context.say("Scaling", after.text)
        tags = [{"Key": DEPLOYMENT_TAG, "Value": name}, {"Key": ID_TAG, "Value": record.id}]
        autoscaling.register(aws, name, after, tags + read_company(record.current).tag_list)

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        copies = resource.name.startswith(copies_id(""))
        aws.delete(
            _SCALING, "deregister_scalable_target",
            ServiceNamespace=SERVICE_NAMESPACE,
            ResourceId=resource.name,
            ScalableDimension=COPY_DIMENSION if copies else DIMENSION,
        )  # fmt: skip

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        for target in aws.items(
            _SCALING, "describe_scalable_targets", "ScalableTargets",
            ServiceNamespace=SERVICE_NAMESPACE,
        ):  # fmt: skip
            name = target["ResourceId"]  # with its policies, and the alarms that AWS made of them
            if name.startswith(f"endpoint/{tagged.name}/") or name == copies_id(tagged.name):
                yield self.resource(name)
        for alarm in _alarms(aws, [wake_alarm_name(tagged.name)]):
            if _watches(alarm, tagged.name):  # tiny and peagle-tiny name theirs alike
                yield ALARMS.resource(alarm["AlarmName"])

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Change]:
        return compare_keys(self.path, desired, actual)


class SchedulerRole(Kind):
    """The role with which EventBridge Scheduler deletes the endpoint."""

    type = "SchedulerRole"

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        aws, record = context.aws, context.record
        place = f"arn:{aws.partition}:sagemaker:{aws.region}:{aws.account}"
        component = f"{place}:inference-component/{record.name}" if body["copies"] else None
        allowed = role_policy(f"{place}:endpoint/{record.name}", (ID_TAG, record.id), component)
        with context.creating(revision.resource(self.type, name)):
            with suppress(AlreadyExists):
                aws.call(
                    "iam", "create_role",
                    RoleName=name,
                    AssumeRolePolicyDocument=json.dumps(trust_policy(aws.account)),
                    Description=f"EventBridge Scheduler deletes the endpoint {record.name} at its "
                    "end time",
                    **role_parameters(read_company(revision), "limits"),
                )  # fmt: skip
            aws.call("iam", "put_role_policy", RoleName=name, PolicyName=END_POLICY,
                     PolicyDocument=json.dumps(allowed))  # fmt: skip

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        aws.delete("iam", "delete_role_policy", RoleName=resource.name, PolicyName=END_POLICY)
        aws.delete("iam", "delete_role", RoleName=resource.name)

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        if tagged.ends:
            yield self.resource(limit_name(aws.region, tagged.name))


class Schedule(Kind):
    """A schedule of EventBridge that deletes the endpoint at its end, or its copies before. No plan
    alone sets one: the end depends on when it was applied, and moves (``scaling``)."""

    type, area = "Schedule", "schedule"
    path = "schedule.{}"

    def schedules(
        self, region: str, endpoint: str, copies: bool, ends_at: float
    ) -> Mapping[str, Body]:
        """Name -> document of the schedules of an endpoint with that end, in epoch seconds; that of
        its copies is first."""
        first = copies_limit_name(region, endpoint)
        names = (*([first] if copies else ()), limit_name(region, endpoint))
        return {name: {"ends_at": ends_at, "copies": name == first} for name in names}

    def desired(self, applied: AppliedPlan) -> Mapping[str, Body]:
        plan, ends_at = applied.plan, applied.ends_at
        if ends_at is None:
            return {}
        return self.schedules(plan.region, plan.name, plan.copies is not None, ends_at)

    def read(self, aws: Aws, plan: Plan, names: Collection[str]) -> Mapping[str, Body]:
        schedules = {name: aws.find("scheduler", "get_schedule", Name=name) for name in names}
        return {name: schedule for name, schedule in schedules.items() if schedule is not None}

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        aws, endpoint, clock = context.aws, context.record.name, context.clock
        copies, ends_at = body["copies"], body["ends_at"]
        if copies:  # exact to the minute
            ends_at = max(ends_at - COPIES_BEFORE_SECONDS, clock.now() + 60)
        planned = schedule(aws.region, endpoint, _at_expression(ends_at), copies)
        role = f"arn:{aws.partition}:iam::{aws.account}:role/{limit_name(aws.region, endpoint)}"
        target = {**planned["Target"], "Arn": target_arn(aws.partition, copies), "RoleArn": role}
        more = {"ActionAfterCompletion": "DELETE", "Target": target, "State": "ENABLED"}

        def create_or_update() -> None:
            try:
                aws.call("scheduler", "create_schedule", **{**planned, **more})
            except AlreadyExists:
                aws.call("scheduler", "update_schedule", **{**planned, **more})

        with context.creating(revision.resource(self.type, name)):
            context.say("Scheduling the end", utc_text(body["ends_at"]))
            send_until_visible(
                create_or_update,
                _ASSUMED_AFTER_SECONDS,
                lambda error: "assume the role" in error.message,
                clock,
            )

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        aws.delete("scheduler", "delete_schedule", Name=resource.name)

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        if tagged.ends:
            names = self.schedules(aws.region, tagged.name, tagged.copies, 0)
            yield from (self.resource(name) for name in names)

    def compare(self, name: str, desired: Body, actual: Body) -> Iterator[Change]:
        planned = {"State": "ENABLED"}
        if not desired["copies"]:  # theirs ends some time before
            planned["ScheduleExpression"] = _at_expression(desired["ends_at"])
        return compare_leaves(self.path.format(name), planned, actual)


def _at_expression(moment: float) -> str:
    return f"at({utc_text(moment).rstrip('Z')})"


class Weights(Kind):
    """The objects of uploaded weights, which ``apply`` uploads."""

    type = "S3Objects"

    def delete(self, aws: Aws, endpoint: str, resource: Resource) -> None:
        s3.delete_objects(aws, S3Uri.parse(resource.name).bucket, resource.keys)

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        for uri, revision in _uploads(tagged).items():
            prefix, keys = S3Uri.parse(uri).folder, tuple[str, ...]()
            with suppress(Missing):  # without its bucket
                keys = tuple(S3Bucket(aws, prefix.bucket).sizes(prefix.key))
            yield self.resource(uri, revision).model_copy(update={"keys": keys})


def _uploads(tagged: TaggedDeployment) -> Mapping[str, str]:
    """Prefix of uploaded weights -> the revision of the model that mounts them."""
    no_variant: Body = {"ProductionVariants": [{}]}
    return {
        uri: revision
        for model, revision in tagged.models
        for uri in parse_values(model, no_variant)["weights"].values()
        if is_uploaded(uri)
    }


def is_uploaded(uri: str) -> bool:
    """Whether a deploy uploaded these weights."""
    return is_s3_uri(uri) and S3Uri.parse(uri).key.startswith(UPLOAD_FOLDER)


class Bucket(Kind):
    """The bucket of uploaded weights. It goes if a deploy created it, and it is empty."""

    type = "S3Bucket"

    def put(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        resource = revision.resource(self.type, name)
        recorded = [each for each in context.record.of_type(self.type) if each.name == name]
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

    def find(self, aws: Aws, tagged: TaggedDeployment) -> Iterator[Resource]:
        for name in sorted({S3Uri.parse(uri).bucket for uri in _uploads(tagged)}):
            is_ours = True  # also where reading its tags is denied
            with suppress(AccessDenied):
                is_ours = s3.is_our_bucket(aws, name)
            if is_ours:
                yield self.resource(name)


class OwnedResource(Kind):
    """A model or a configuration, which carries the deployment's id: one of our name without it
    belongs to another owner."""

    type: ResourceKind

    def __init__(self, kind: ResourceKind, noun: str) -> None:
        self.type, self.noun = kind, noun

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        tags, owner = [revision.tag], context.record.id
        sagemaker.create(context.aws, self.type, name, dict(body), owner, tags, context.clock)

    def remove(self, context: DeploymentContext, resource: Resource) -> bool:
        owner = sagemaker.owner(context.aws, self.type, resource.name)
        # What a template left carries no deployment id.
        if owner not in (None, context.record.id) and not (context.record.owner and owner == ""):
            return False
        self.delete_owned(context, resource)
        return True

    def delete_owned(self, context: DeploymentContext, resource: Resource) -> None:
        """Delete one that is the deployment's."""
        sagemaker.delete(context.aws, self.type, resource.name)


class OwnedEndpoint(OwnedResource):
    """The endpoint. Its scaling and the copies on it go before."""

    def create(self, context: DeploymentContext, revision: Revision, name: str, body: Body) -> None:
        context.change(billing_since=context.clock.now())
        super().create(context, revision, name, body)

    def delete_owned(self, context: DeploymentContext, resource: Resource) -> None:
        if live := sagemaker.describe(context.aws, resource.name):
            delete_endpoint(context, live)


def delete_endpoint(context: DeploymentContext, live: Endpoint) -> None:
    """Delete the endpoint after its copies, each after the end of a change, and wait until it is
    gone. Raises Busy when another client begins changes."""
    revision, name, left = context.record.current, live.name, live
    with suppress(AccessDenied):  # DeleteEndpoint reports what is in its way
        autoscaling.deregister(context.aws, name, live.component is not None)
    while True:
        since, status, component = context.clock.now(), left.status, left.component
        purpose = "Removing copies" if component else ""
        try:
            if component and component["InferenceComponentStatus"] != "Deleting":
                named = {"InferenceComponentName": name}
                context.aws.delete("sagemaker", "delete_inference_component", **named)
            elif not component and status != "Deleting":
                sagemaker.delete(context.aws, "Endpoint", name)
        except Busy:
            if status not in BUSY:
                raise
            purpose = "Waiting for the current change to end"
        after = wait_while_busy(context, revision, since, purpose=purpose)
        if after is None:
            context.change(billing_since=None)
            return
        if not component and status not in BUSY:
            fix = Fix("run the command again", ("peagle", "destroy", name))
            message = f"endpoint {name} was not deleted: {after.status} {after.failure or ''}"
            raise CloudError(message, fix, "endpoint-not-deleted")
        left = after


LOG, DASHBOARD, CAPTURE, FILTERS, ALARMS = (
    Log(), Dashboard(), CaptureRule(), MetricFilter(), Alarm(),
)  # fmt: skip
SCALING, SCHEDULE, ROLE = ScalingTarget(), Schedule(), SchedulerRole()
BUCKET, WEIGHTS = Bucket(), Weights()
MODEL = OwnedResource("Model", "model")
CONFIG = OwnedResource("EndpointConfig", "endpoint configuration")
ENDPOINT = OwnedEndpoint("Endpoint", "endpoint")
SETTINGS: tuple[Kind, ...] = (LOG, DASHBOARD, CAPTURE, FILTERS, ALARMS)
"""What a plan sets outside of its endpoint, in the order in which it is applied."""

KINDS: Mapping[ResourceType, Kind] = {
    kind.type: kind
    for kind in (
        SCALING, ENDPOINT, SCHEDULE, ROLE, ALARMS, FILTERS, LOG, DASHBOARD, CAPTURE, CONFIG, MODEL,
        WEIGHTS, BUCKET,
    )
}  # fmt: skip
"""In the order of removal: an endpoint that scales is not deleted, it needs its configuration while
it exists, and the configuration its model."""


def put_settings(context: DeploymentContext, revision: Revision) -> None:
    """Apply what the revision's plan sets outside of the endpoint, and remove what only an earlier
    plan set."""
    plan = revision.plan
    assert plan is not None
    for kind in SETTINGS:
        for name, document in kind.desired(AppliedPlan(plan, revision.name)).items():
            kind.put(context, revision, name, document)
    for kind in (DASHBOARD, CAPTURE, ALARMS, FILTERS):  # an alarm before what it watches
        for resource in context.record.of_type(kind.type):
            if kind.is_stale(plan, resource.name):
                remove(context, resource)


def remove(context: DeploymentContext, resource: Resource) -> bool:
    """Remove the resource and its entry in the record; whether it was ours to remove. Raises
    AccessDenied when it may not be looked at: its entry stays."""
    context.say("Removing", resource.text)
    is_ours = KINDS[resource.type].remove(context, resource)
    context.write(context.record.without(resource.type, resource.name))
    return is_ours


def name_log_groups(name: str) -> tuple[str, str]:
    """The log groups that the endpoint may have: its own, or that of its copies."""
    return log_group(name), log_group(name, copies=True)


def read_company(revision: Revision) -> Company:
    return revision.plan.company if revision.plan else NO_COMPANY
