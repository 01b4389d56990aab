"""From a plan to the change that applies it: complete requests, and checks against the account
before anything is created. Reads only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from peagle.aws import prices, s3, sagemaker, vpc
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.iam import Role, find_role
from peagle.aws.s3 import Upload, default_bucket
from peagle.aws.sagemaker import BROKEN, Endpoint, update_batch_size
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import InstanceTable, Price
from peagle.checkpoints.contents import files_below, hash_contents
from peagle.checkpoints.files import CONFIG as CONFIG_FILE
from peagle.checks.facts import destinations
from peagle.checks.report import NOT_IN_SANDBOX
from peagle.data import weights_folder
from peagle.deploy import records, resources
from peagle.deploy.context import DeploymentContext
from peagle.deploy.diff import Change
from peagle.deploy.discover import compare_live, current_deployment
from peagle.deploy.kinds import AppliedPlan, compare_kind
from peagle.deploy.revisions import require_no_comparison, require_own
from peagle.deploy.scaling import (
    SAME_END_SECONDS,
    ScalingChange,
    count_at_update,
    highest_price,
    planned_end,
    required_scaling,
)
from peagle.deploy.state import Deployment, Revision, served_by_plan, utc_text
from peagle.errors import CloudError, Fix, PeagleError, Refused
from peagle.findings import Finding, Level, error, errors, finding, warning
from peagle.planning import weights
from peagle.planning.operation import adapt_rollout, capture_text, most_usd_per_hour
from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET, Plan, Rollout, refuse_here
from peagle.render.alarms import rollback_alarm_names
from peagle.render.requests import (
    CREATE_COMPONENT,
    CREATE_CONFIG,
    CREATE_ENDPOINT,
    CREATE_MODEL,
    requests,
    with_replaced,
)
from peagle.s3uri import S3Uri
from peagle.text import json_digest
from peagle.weights.mounted import CHANGED, WEIGHTS_CODES, mounted_findings, pin_plan, prefixes_read

_FINGERPRINT_DIGITS = 8
_HASH_AT_END = re.compile(r"-[0-9a-f]{8}$")

_PRICE_CODES = {
    "price-unknown", "price-of-another-region", "price-snapshot", "price-not-from-aws",
    "instance-region-unknown",
}  # fmt: skip
"""Findings that AWS's own price list resolves: a price shows that the region hosts the type."""

CHECKED_AGAIN = _PRICE_CODES | prices.QUOTA_CODES | WEIGHTS_CODES
"""Findings that preflight checks again; the plan's own no longer count."""

ROLE_ACTIONS = (
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface", "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeNetworkInterfaces", "ec2:DescribeVpcs", "ec2:DescribeDhcpOptions",
    "ec2:DescribeSubnets", "ec2:DescribeSecurityGroups",
)  # fmt: skip
"""What SageMaker does with the role to attach containers to a VPC: "Execution role permissions" of
CreateModel in SageMaker's documentation."""

Action = Literal["nothing", "scale", "prove", "create", "update"]
"""``scale``: only the automatic scaling changes."""


@dataclass(frozen=True)
class DesiredState:
    """What deploy creates in the account. ``component`` is CreateInferenceComponent for copies."""

    plan: Plan
    revision: Revision
    uploads: tuple[Upload, ...]
    model: dict[str, Any]
    config: dict[str, Any]
    endpoint: dict[str, Any]
    component: dict[str, Any] | None = None


def desired_state(
    plan: Plan, role: str, bucket: str | None, record: Deployment | None = None
) -> DesiredState:
    """The plan with role and bucket filled in. Names are the plan's own, unless the record has a
    model of that name made with another role: nothing in service is overwritten. Raises UserError
    for a folder that does not exist, and Refused when it has changed since the plan was made."""
    folders = [files_below(weights_folder(each.location)) for each in weights.local_weights(plan)]
    contents = hash_contents(folders)
    if folders and weights.planned_contents(plan) is None:
        plan = weights.with_contents(plan, contents)
    elif folders and weights.planned_contents(plan) != contents:
        places = " and ".join(each.location for each in weights.local_weights(plan))
        message = f"the weights in {places} have changed since the plan was made"
        raise Refused(message, "make the plan again", CHANGED)
    filled = {EXECUTION_ROLE: role, MODEL_BUCKET: bucket or ""}
    uris = [str(with_replaced(each.s3_uri, filled)) for each in weights.local_weights(plan)]
    # With other tags of the user, or another path of a head, the same instances serve.
    company = plan.company.model_copy(update={"tags": {}})
    plain = plan.model_copy(update={"company": company, "pair": weights.portable_pair(plan.pair)})
    untagged = {request.operation: request.parameters for request in requests(plain)}
    fingerprint = json_digest([with_replaced(untagged, filled), contents])[:_FINGERPRINT_DIGITS]
    planned = {request.operation: request.parameters for request in requests(plan)}
    model, config = planned[CREATE_MODEL], planned[CREATE_CONFIG]
    names = [str(model["ModelName"]), str(config["EndpointConfigName"])]
    # Copies of another model run on the same instances: their configuration keeps its name.
    changed = names[:1] if CREATE_COMPONENT in planned else names
    renamed = {name: _HASH_AT_END.sub(f"-{fingerprint}", name) for name in changed}
    earlier = {r.name: r.revision for r in record.of_type("Model")} if record else {}
    if renamed[names[0]] in earlier or earlier.get(names[0], fingerprint) != fingerprint:
        filled |= renamed
    complete = with_replaced(planned, filled)
    component = complete.get(CREATE_COMPONENT)
    model, config = complete[CREATE_MODEL], complete[CREATE_CONFIG]
    model_name, config_name = model["ModelName"], config["EndpointConfigName"]
    revision = Revision(
        fingerprint=fingerprint,
        served=served_by_plan(plan, filled),
        plan=plan,
        role=role,
        bucket=bucket if folders else None,
        model=model_name,
        name=model_name if component else config_name,
        instances_config=config_name if component else "",
    )
    places_of_uploads = (S3Uri.parse(uri).folder for uri in uris)
    uploads = tuple(
        Upload(place.bucket, place.key, files, contents)
        for place, files in zip(places_of_uploads, folders, strict=True)
    )
    return DesiredState(
        plan, revision, uploads, model, config, complete[CREATE_ENDPOINT], component
    )


def role_and_bucket(
    aws: Aws,
    plan: Plan,
    record: Deployment | None,
    role: str | None = None,
    bucket: str | None = None,
) -> tuple[Role, str | None]:
    """The role, and the bucket of uploaded weights: the user's choice, else those of the
    deployment, else what the account has."""
    current = record.current if record else None
    if current and role is None:
        used = Role(current.role, "as deployed before")
    else:
        used = find_role(aws, role)
    if not weights.local_weights(plan):
        return used, None
    earlier = bucket or (current.bucket if current else None)
    return used, earlier or default_bucket(aws.account, aws.region)


def required_change(
    record: Deployment | None, live: Endpoint | None, desired: DesiredState
) -> Action:
    """What deploying ``desired`` would do."""
    if record is None or live is None or live.status in (*BROKEN, "Deleting"):
        return "create"
    if desired.revision.name not in (live.revision, live.pending_revision):
        return "update"
    if live.status != "InService":
        return "create" if live.status == "Creating" else "update"
    serving = record.serving
    if serving is None or serving.fingerprint != desired.revision.fingerprint or record.pending:
        return "prove"
    return "nothing" if serving.is_proved else "prove"


def _with_price(aws: Aws, plan: Plan) -> tuple[Plan, list[Finding]]:
    """The plan with AWS's own price where the catalogue has none for the region; without either,
    the plan's own findings say so."""
    doubts = [finding for finding in plan.findings if finding.code in _PRICE_CODES]
    if plan.price_per_hour_usd is not None and not doubts:
        return plan, []
    with suppress(PeagleError):
        if price := prices.hosting_prices(aws).get(plan.instance_type):
            return _priced(plan, price), []
    return plan, doubts


def _priced(plan: Plan, price: Price) -> Plan:
    total = round(price.usd_per_hour * plan.instance_count, 4)
    changed: dict[str, Any] = {"price_per_hour_usd": total, "price_date": price.date.isoformat()}
    if plan.rollout:
        changed["rollout"] = plan.rollout.at_price(price.usd_per_hour)
    return plan.model_copy(update=changed)


def plan_with_live_prices(aws: Aws, catalog: Catalog, plan: Callable[[Catalog], Plan]) -> Plan:
    """The plan, ranked by today's prices, with findings about quota and weights. ``plan`` makes a
    plan from a catalogue."""
    listed, doubts = prices.fresh_prices(aws)
    catalog = replace(catalog, instances=prices.with_prices(catalog.instances, listed))
    return _with_account_findings(aws, plan(catalog), catalog.instances, doubts)


def plan_with_price_of_today(aws: Aws, catalog: Catalog, plan: Plan) -> Plan:
    """The plan of a file with today's price and the same findings; nothing else changes."""
    listed, doubts = prices.fresh_prices(aws)
    price = listed.get(plan.instance_type)
    priced = _priced(plan, price) if price else plan
    return _with_account_findings(aws, priced, catalog.instances, doubts)


def _with_account_findings(
    aws: Aws, plan: Plan, instances: InstanceTable, doubts: Iterable[Finding]
) -> Plan:
    """The plan with pins, and with findings about price (``doubts``), quota and weights."""
    stored = mounted_findings(aws, plan)
    plan, pins = pin_plan(aws, plan)
    quota = prices.quota_findings(
        aws, plan.instance_type, plan.instance_count, instances, at_plan=True
    )
    replaced = NOT_IN_SANDBOX if aws.in_sandbox else set[str]()
    kept = [finding for finding in plan.findings if finding.code not in replaced]
    findings = (*kept, *doubts, *quota, *stored, *pins)
    levels = ("error", "warning", "note")
    by_level = sorted(findings, key=lambda finding: levels.index(finding.level))
    return plan.model_copy(update={"findings": tuple(by_level)})


@dataclass(frozen=True)
class Preflight:
    """The change to make and the findings. ``changes`` are the settings that it changes. ``broken``
    is the state of an endpoint that is deleted and created again. ``rollout`` is the plan's, for
    the instances that run; ``most_usd_per_hour`` the price of the most that may run."""

    desired: DesiredState
    change: Action
    role: Role
    record: Deployment | None
    findings: tuple[Finding, ...]
    changes: tuple[Change, ...]
    broken: str
    scaling: ScalingChange | None
    rollout: Rollout | None
    most_usd_per_hour: float | None
    instances: int


def preflight(
    aws: Aws,
    plan: Plan,
    instances: InstanceTable,
    role: str | None = None,
    bucket: str | None = None,
    as_candidate: bool = False,
) -> Preflight:
    """Check everything in the account that deploying ``plan`` depends on; with ``as_candidate``,
    that serving it beside the revision in service depends on. Raises UserError and CloudError, and
    Refused while the deployment compares two plans, unless ``as_candidate``."""
    refuse_here(plan)
    live = sagemaker.describe(aws, plan.name)
    record = records.load_record(aws.scope, aws.region, plan.name)
    try:
        record = current_deployment(aws, plan.name, record, lambda: instances, live, complete=True)
        if record:
            require_own(record)
    except AccessDenied:  # without the permission to read tags, what is recorded here counts
        if record is None and live is not None:
            raise
    if record and not as_candidate:
        require_no_comparison(record)
    serving = weights.parse_pins(record.current.served.variables) if record else None
    pinned, pins = pin_plan(aws, plan, serving)
    priced, findings = _with_price(aws, pinned)
    used, bucket = role_and_bucket(aws, plan, record, role, bucket)
    desired = desired_state(priced, used.arn, bucket, record)
    change = required_change(record, live, desired)
    scaling = required_scaling(aws, record, live, desired.plan.scaling)
    if change == "nothing" and scaling:
        change = "scale"
    is_update = change == "update"
    if live and not (record and sagemaker.owner(aws, "Endpoint", plan.name) == record.id):
        message = f"an endpoint called {plan.name} exists that this toolkit did not create"
        findings.append(error("name-in-use", "name", message, "choose another --name"))
    if is_update:
        findings += _copies_findings(desired, live)
    count, rollout = priced.instance_count, priced.rollout
    if is_update and live:
        count = count_at_update(aws, record, desired.revision, live)
        if rollout and priced.copies is None:
            rollout = adapt_rollout(rollout, count)
    if change in ("create", "update"):
        more = 0
        if is_update:
            more = rollout.extra_instances if rollout else update_batch_size(count)
        findings += _quota(aws, plan, instances, count + more)
        for bucket_of_weights in {upload.bucket for upload in desired.uploads}:
            s3.bucket_exists(aws, bucket_of_weights)  # refuses one of another account or region
        findings += _capture_findings(aws, plan)
        findings += [*mounted_findings(aws, plan), *pins]
        findings += _role_access_findings(aws, used, desired)
        findings += _network_findings(aws, plan)
    findings += _topic_findings(aws, plan)
    changes: tuple[Change, ...] = ()
    if record:
        changes = tuple(_changes(aws, desired, record, live, is_update, as_candidate))
    broken = live.status if live and live.status in BROKEN else ""
    usd, limit = most_usd_per_hour(desired.plan), plan.limit
    if record and live and limit and limit.budget_usd is not None:
        usd = highest_price(aws, record, desired.revision, live)
    return Preflight(
        desired, change, used, record, tuple(findings), changes, broken, scaling, rollout, usd,
        count if change in ("create", "update") or live is None else live.desired_count,
    )  # fmt: skip


def _changes(
    aws: Aws,
    desired: DesiredState,
    record: Deployment,
    live: Endpoint | None,
    is_update: bool,
    as_candidate: bool,
) -> Iterator[Change]:
    """What the change alters in an endpoint that serves, and in what belongs to it. What may not be
    read is unknown."""
    plan, revision, before = desired.plan, desired.revision, record.current.plan
    if is_update and live:
        yield from compare_live(record, live, revision)
    if as_candidate:
        return
    applied = AppliedPlan(plan, revision.name)
    if live:  # as it serves: alarms follow an update, and the end is a setting of its own
        applied = AppliedPlan(plan, live.revision, record.ends_at)
    for kind in (*resources.SETTINGS, resources.SCHEDULE):
        try:
            yield from compare_kind(kind, aws, applied, record.of_type(kind.type))
        except AccessDenied:
            yield Change(kind.area, "unknown", "as planned")
    if before is not None:
        captures = (each.observe and each.observe.capture for each in (before, plan))
        old, new = (capture_text(capture) if capture else None for capture in captures)
        if old != new:
            yield Change("captured data", old, new)
    with suppress(CloudError):  # deploy itself reports an end that it refuses
        end = planned_end(DeploymentContext(aws, record), revision).at
        ends = (record.ends_at, end)
        if end != record.ends_at and (
            None in ends or abs((ends[0] or 0) - (end or 0)) >= SAME_END_SECONDS
        ):
            yield Change("end", *(None if at is None else utc_text(at) for at in ends))


def _capture_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """The error that there is no bucket for captured data, which SageMaker would drop. Raises
    Refused for one of another region, or of another account, whose rules deploy cannot change."""
    capture = plan.observe.capture if plan.observe else None
    if capture is None:
        return
    bucket = S3Uri.parse(capture.s3_uri).bucket
    try:
        if not s3.bucket_exists(aws, bucket):
            fix = Fix("create it, or name another one", ("aws", "s3", "mb", f"s3://{bucket}"))
            yield error("no-bucket", "--capture-data", f"there is no bucket {bucket}", fix)
    except Refused as refused:
        if refused.code != s3.BUCKET_DENIED or capture.retention_days:
            raise


def _copies_findings(desired: DesiredState, live: Endpoint | None) -> Iterator[Finding]:
    """The error that an update would change more than the model of an endpoint with copies."""
    if live is None or live.status in BROKEN:  # then it is created again
        return
    is_same = live.endpoint_config == desired.config["EndpointConfigName"]
    if is_same or not (live.hosts_components or desired.component):
        return
    message = (
        f"the endpoint {live.name} runs on other instances, or without copies, and an update of an "
        "endpoint with copies replaces their model only"
    )
    fix = "choose another --name and destroy this one afterwards, or destroy it first"
    yield error("copies-fixed-instances", "name", message, fix)


def _quota(aws: Aws, plan: Plan, instances: InstanceTable, count: int) -> Iterator[Finding]:
    """About ``count`` instances. A quota below the maximum of scaling is a warning."""
    findings = prices.quota_findings(aws, plan.instance_type, count, instances)
    yield from findings
    if plan.scaling is None or errors(findings):
        return
    most = plan.scaling.max_instances
    text = f"scaling to {most} instances will fail"
    for each in prices.quota_findings(aws, plan.instance_type, most, instances):
        if each.level == "error":
            message = f"{text}: {each.message}"
            yield each.model_copy(update={"level": "warning", "message": message})


def _network_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the plan's subnets have routes to what its containers need, which SageMaker reports
    only after minutes. Security groups and network ACLs are not looked at."""
    company = plan.company
    if not company.in_vpc:
        return
    needed = destinations(plan.environment, company.network_isolation)
    try:  # SageMaker places instances in any of the subnets
        no_s3, closed = vpc.find_isolated(aws, company.subnets)
    except AccessDenied as denied:
        message = f"not known whether containers in {', '.join(company.subnets)} can start"
        fix = (
            "allow ec2:DescribeSubnets, DescribeRouteTables and DescribeVpcEndpoints to these "
            "credentials, or check with others"
        )
        yield warning("network-unknown", "subnets", f"{message}: {denied.message}", fix)
        return
    if needed.s3 and no_s3:
        message = f"there is no route to {needed.s3} from {', '.join(no_s3)}"
        fix = f"add a gateway endpoint for com.amazonaws.{aws.region}.s3 to their VPC"
        yield error("network-unreachable", "subnets", message, fix)
    if needed.internet and closed:
        message = f"there is no route to {needed.internet} from {', '.join(closed)}"
        fix = (
            "add a NAT gateway to its routes (an internet gateway serves no container), or copy "
            "the weights to S3 with peagle weights sync and use --model-source"
        )
        yield error("network-unreachable", "subnets", message, fix)


def _role_access_findings(aws: Aws, role: Role, desired: DesiredState) -> Iterator[Finding]:
    """Whether the role's policies allow what the plan needs. Those of buckets are not simulated:
    what these can allow is a warning. SageMaker itself checks that it may assume the role."""
    folders = {S3Uri.parse(upload.uri) for upload in desired.uploads}
    folders |= {S3Uri.parse(prefix.uri) for prefix in prefixes_read(desired.plan)}
    for actions, resource, bucket, below in _needs(aws, desired.plan, sorted(folders, key=str)):
        # The bucket that deploy creates has no policy.
        is_ours = bucket == default_bucket(aws.account, aws.region)
        others = f"the policy of the bucket {bucket}" if bucket and not is_ours else ""
        prefix = {"ContextKeyName": "s3:prefix", "ContextKeyValues": [below]}
        context = [] if below is None else [{**prefix, "ContextKeyType": "string"}]
        try:
            response = aws.call(
                "iam", "simulate_principal_policy", PolicySourceArn=role.arn,
                ActionNames=list(actions), ResourceArns=[resource], ContextEntries=context,
            )  # fmt: skip
        except CloudError as failed:
            message = f"not known whether {role.name!r} has {actions[0]}: {failed.message}"
            fix = "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it"
            yield warning("role-permission-unknown", "role", message, fix)
            return
        results = response["EvaluationResults"]
        denied = [each["EvalActionName"] for each in results if each["EvalDecision"] != "allowed"]
        if denied:
            message = f"the role {role.name!r} does not allow {' and '.join(denied)} on {resource}"
            message += f", unless {others} does" if others else ""
            level: Level = "warning" if others else "error"
            fix = "add it to a policy of the role; those in infra/iam are examples"
            yield finding(level, "role-lacks-permission", "role", message, fix)


def _needs(
    aws: Aws, plan: Plan, folders: Iterable[S3Uri]
) -> Iterator[tuple[tuple[str, ...], str, str, str | None]]:
    """Actions, resource, the bucket whose policy may allow them too, and the value of s3:prefix."""
    in_s3 = f"arn:{aws.partition}:s3:::"
    for folder in folders:
        bucket, below = folder.bucket, folder.key
        yield ("s3:GetObject",), f"{in_s3}{bucket}/{below}{CONFIG_FILE}", bucket, below
        yield ("s3:ListBucket",), f"{in_s3}{bucket}", bucket, below
    if plan.company.in_vpc:
        yield ROLE_ACTIONS, "*", "", None
    for name in rollback_alarm_names(plan):
        alarm = f"arn:{aws.partition}:cloudwatch:{aws.region}:{aws.account}:alarm:{name}"
        yield ("cloudwatch:DescribeAlarms",), alarm, "", None
    if capture := plan.observe.capture if plan.observe else None:
        place = S3Uri.parse(capture.s3_uri).folder
        objects = f"{in_s3}{place.bucket}/{place.key}{plan.name}/*"
        yield ("s3:PutObject",), objects, place.bucket, None


def _topic_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """The error that the topic of the plan's alarms does not exist, which CloudWatch would not
    report."""
    topic = plan.observe.alarm_topic if plan.observe else None
    with suppress(AccessDenied):
        if topic and aws.find("sns", "get_topic_attributes", TopicArn=topic) is None:
            message, fix = f"there is no topic {topic}", "create it, or use another one"
            yield error("topic-missing", "alarm_topic", message, fix)
