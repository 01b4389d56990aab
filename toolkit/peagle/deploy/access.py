"""What the company's VPC and the execution role let a container do: checked before anything is
created.

SageMaker reports a wrong network after minutes of a starting instance. What these credentials may
not look at is reported as not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from peagle.aws import vpc
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.iam import Role
from peagle.aws.s3 import default_bucket
from peagle.aws.vpc import Route, SecurityGroup, Subnet
from peagle.checks.facts import destinations
from peagle.deploy.diff import SettingChange
from peagle.errors import CloudError, Fix
from peagle.findings import Finding, error, finding, note, warning
from peagle.planning.plan import Plan
from peagle.render.alarms import rollback_alarm_names
from peagle.s3uri import S3Uri
from peagle_serve.contract import MODEL_FOLDER, VOCABULARY_FILE, VOCABULARY_VARIABLE

ROLE_ACTIONS = (
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeVpcs",
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeSubnets",
    "ec2:DescribeSecurityGroups",
)
"""What SageMaker does with the role to attach containers to a VPC: "Execution role permissions" of
CreateModel in SageMaker's documentation."""


_PRESCRIBED = ("subnets", "security_groups", "network_isolation", "kms_key")
"""The settings of a deployment that a company prescribes."""


def network_findings(aws: Aws, plan: Plan, more_instances: int) -> Iterator[Finding]:
    """Findings about the plan's subnets and security groups; nothing without a VPC.

    ``more_instances`` is how many instances the change starts.
    """
    company = plan.company
    if not company.in_vpc:
        return
    try:
        yield from _findings(aws, plan, more_instances)
    except CloudError as failed:
        subnets = ("aws", "ec2", "describe-subnets", "--subnet-ids", *company.subnets)
        yield warning(
            "network-unknown", "subnets",
            f"not known whether containers in {', '.join(company.subnets)} can start: "
            f"{failed.message}",
            Fix(
                "allow ec2:DescribeSubnets, DescribeSecurityGroups, DescribeRouteTables and "
                "DescribeVpcEndpoints to these credentials, or check with others",
                (*subnets, "--region", aws.region),
            ),
        )  # fmt: skip


def _findings(aws: Aws, plan: Plan, more_instances: int) -> Iterator[Finding]:
    company = plan.company
    subnets = vpc.find_subnets(aws, company.subnets)
    groups = vpc.find_security_groups(aws, company.security_groups)
    missing = [one for one in company.subnets if one not in subnets]
    missing += [one for one in company.security_groups if one not in groups]
    if missing:
        message = f"{aws.region} has no {' and no '.join(missing)} in account {aws.account}"
        yield error("network-missing", "subnets", message, "correct the ids, or the --region")
        return
    vpcs = sorted({one.vpc for one in subnets.values()} | {one.vpc for one in groups.values()})
    if len(vpcs) > 1:
        message = f"subnets and security groups are of {len(vpcs)} VPCs: {', '.join(vpcs)}"
        yield error("network-of-several-vpcs", "subnets", message, "name those of one VPC")
        return
    yield from _room(tuple(subnets.values()), more_instances)
    yield from _reach(aws, plan, vpcs[0], tuple(groups.values()))


def _room(subnets: Collection[Subnet], more_instances: int) -> Iterator[Finding]:
    """Whether the subnets have an address for each new instance, and are in several zones."""
    free = sum(one.free_addresses for one in subnets)
    if free < more_instances:
        message = f"the subnets have {free} free addresses; the change starts {more_instances} more"
        yield error("network-full", "subnets", message, "name larger subnets")
    if len({one.zone for one in subnets}) == 1:
        zone = next(iter(subnets)).zone
        message = f"all subnets are in {zone}, so AWS finds instances only there"
        yield note("network-one-zone", "subnets", message, "name a subnet of another zone too")


def _blocked(groups: Collection[SecurityGroup], outside: Collection[str]) -> Iterator[Finding]:
    """Whether the outbound rules evidently close the way to what is ``outside`` of the VPC. Ports
    and destinations count; network ACLs and the policies of endpoints are not looked at."""
    names, ways = ", ".join(sorted(one.id for one in groups)), {one.https for one in groups}
    message = ""
    if ways == {"nowhere"}:
        message = f"no rule of {names} lets requests to port 443 leave, so nothing is reached"
    elif "anywhere" not in ways and outside:
        message = (
            f"the rules of {names} let requests to port 443 go to private addresses only, and "
            f"{' and '.join(outside)} has public ones"
        )
    if message:
        fix = "add an outbound rule for TCP 443, to 0.0.0.0/0 or to the prefix list of S3"
        yield error("network-blocked", "security_groups", message, fix)


def _reach(
    aws: Aws, plan: Plan, vpc_id: str, groups: Collection[SecurityGroup]
) -> Iterator[Finding]:
    """Whether every subnet has a route to what the container needs, and the groups let it through:
    SageMaker places instances in any of the subnets."""
    needed = destinations(plan.environment, plan.company.network_isolation)
    if not needed.s3 and not needed.internet:
        yield from _blocked(groups, ())
        return
    routes = vpc.find_routes(aws, vpc_id, plan.company.subnets)
    parts = (
        (needed.s3, "s3", {name: one.s3 for name, one in routes.items()}),
        (needed.internet, "internet", {name: one.internet for name, one in routes.items()}),
    )
    outside = [
        what
        for what, _, by_subnet in parts
        if what and any(route in ("endpoint", "gateway") for route in by_subnet.values())
    ]
    yield from _blocked(groups, outside)
    for what, kind, by_subnet in parts:
        if not what:
            continue
        if without := _with("none", by_subnet):
            message = f"there is no route to {what} from {', '.join(without)}"
            fix = _route_fix(aws, vpc_id, kind)
            yield error("network-unreachable", "subnets", message, fix)
        if unknown := _with("unknown", by_subnet):
            message = (
                f"not known whether {what} can be reached from {', '.join(unknown)}: the default "
                "route leads to something other than a NAT gateway"
            )
            yield warning("network-route-unknown", "subnets", message, "check where it leads")


def _with(route: Route, by_subnet: dict[str, Route]) -> list[str]:
    return sorted(name for name, found in by_subnet.items() if found == route)


def _route_fix(aws: Aws, vpc_id: str, kind: str) -> Fix:
    if kind == "s3":
        service = f"com.amazonaws.{aws.region}.s3"
        command = ("aws", "ec2", "create-vpc-endpoint", "--vpc-id", vpc_id, "--service-name",
                   service, "--route-table-ids", "ROUTE_TABLE", "--region", aws.region)  # fmt: skip
        return Fix("add a gateway endpoint for S3, which costs nothing", command)
    return Fix(
        "add a NAT gateway to its routes (an internet gateway serves no container, which has no "
        "public address), or copy the weights to S3 and use --model-source",
        ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
    )


def role_network_findings(aws: Aws, role: Role, plan: Plan) -> Iterator[Finding]:
    """Whether the execution role may attach containers to the plan's VPC."""
    if not plan.company.in_vpc:
        return
    try:
        answer = aws.call(
            "iam", "simulate_principal_policy",
            PolicySourceArn=role.arn, ActionNames=list(ROLE_ACTIONS), ResourceArns=["*"],
        )  # fmt: skip
    except CloudError as failed:
        message = f"not known whether {role.name!r} may attach containers to a VPC: "
        yield warning(
            "role-network-unknown", "role", f"{message}{failed.message}",
            "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it",
        )  # fmt: skip
        return
    results = answer["EvaluationResults"]
    lacking = [one["EvalActionName"] for one in results if one["EvalDecision"] != "allowed"]
    if lacking:
        yield error(
            "role-cannot-use-vpc", "role",
            f"the policies of the role {role.name!r} do not allow {' and '.join(lacking)}",
            Fix(
                "attach infra/iam/execution-role-vpc-policy.json, with the account filled in",
                ("aws", "iam", "put-role-policy", "--role-name", role.name, "--policy-name",
                 "peagle-vpc", "--policy-document", "file://execution-role-vpc-policy.json"),
            ),
        )  # fmt: skip


def loosened_findings(changed: Iterable[SettingChange]) -> Iterator[Finding]:
    """A warning about what a company prescribed for the deployment and an update leaves out."""
    lost = [one for one in changed if one.setting in _PRESCRIBED and one.before and not one.after]
    if lost:
        keys = [change.setting for change in lost]
        message = (
            f"the update leaves out what the deployment has: {'; '.join(o.text for o in lost)}"
        )
        fix = f"set {' and '.join(keys)} to keep them"
        yield warning("company-settings-removed", lost[0].setting, message, fix)


def vocabulary_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the vocabulary that an isolated container reads from the mounted weights is there."""
    folder = plan.environment.get(VOCABULARY_VARIABLE, "")
    mount = next((one for one in plan.mounts if one.channel is None), None)
    is_local = plan.target.weights.kind != "s3"
    if not plan.company.network_isolation or mount is None or is_local:
        return
    if not f"{folder}/".startswith(f"{MODEL_FOLDER}/"):
        return
    place = S3Uri.parse(mount.s3_uri).folder
    inside = folder.removeprefix(MODEL_FOLDER).strip("/")
    key = f"{place.key}{inside}/{VOCABULARY_FILE}" if inside else f"{place.key}{VOCABULARY_FILE}"
    try:
        aws.call("s3", "head_object", Bucket=place.bucket, Key=key)
    except AccessDenied:
        return  # the same as without: the weights themselves are reported as not readable
    except Missing:
        file = S3Uri(place.bucket, key).uri
        message = f"{file} does not exist, and a container without a network cannot download it"
        yield error(
            "mounted-vocabulary-missing", "network_isolation", message,
            Fix(
                "put the file there, or copy the pair again from a folder that holds it",
                ("peagle", "weights", "sync", "PAIR", mount.s3_uri),
            ),
        )  # fmt: skip


_KEY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}")


@dataclass(frozen=True)
class _Need:
    """``may_be_allowed``: who else may allow the action, "" where only the role's policies do."""

    action: str
    resource: str
    purpose: str
    may_be_allowed: str = ""


def role_access_findings(aws: Aws, role: Role, plan: Plan) -> Iterator[Finding]:
    """Whether the role's policies let it see the alarms of the plan's rollout and write the data
    that the plan captures.

    IAM simulates them without the policies of bucket and key, which may allow what they do not: a
    permission that these can give is a warning, except on the bucket that this toolkit creates.
    """
    for need in _needs(aws, role, plan):
        try:
            is_allowed = _allows(aws, role, need)
        except CloudError as failed:
            yield warning(
                "role-permission-unknown", "role",
                f"not known whether {role.name!r} has {need.action}: {failed.message}",
                "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it",
            )  # fmt: skip
            return
        if is_allowed:
            continue
        unless = f"; unless {need.may_be_allowed} does" if need.may_be_allowed else ""
        policy = {"Effect": "Allow", "Action": need.action, "Resource": need.resource}
        document = json.dumps({"Version": "2012-10-17", "Statement": [policy]})
        command = (
            "aws", "iam", "put-role-policy", "--role-name", role.name, "--policy-name",
            f"peagle-{need.action.partition(':')[2]}", "--policy-document", document,
        )  # fmt: skip
        yield finding(
            "warning" if need.may_be_allowed else "error",
            "role-lacks-permission",
            "role",
            f"the policies of the role {role.name!r} do not allow {need.action} on "
            f"{need.resource}{unless}, {need.purpose}",
            Fix("add it; infra/iam/execution-role-policy.json is an example", command),
        )


def _needs(aws: Aws, role: Role, plan: Plan) -> Iterator[_Need]:
    here = f"{aws.region}:{aws.account}"
    for name in rollback_alarm_names(plan):
        alarm = f"arn:{role.partition}:cloudwatch:{here}:alarm:{name}"
        yield _Need("cloudwatch:DescribeAlarms", alarm, "a rollout cannot watch its alarms")
    capture = plan.observe.capture if plan.observe else None
    if capture is None:
        return
    place = S3Uri.parse(capture.s3_uri).folder
    own = place.bucket == default_bucket(aws.account, aws.region)
    yield _Need(
        "s3:PutObject",
        f"arn:{role.partition}:s3:::{place.bucket}/{place.key}{plan.name}/*",
        "no data is captured",
        "" if own else f"the policy of the bucket {place.bucket}",
    )
    key = capture.kms_key or ""
    if _KEY_ID.fullmatch(key):
        key = f"arn:{role.partition}:kms:{here}:key/{key}"
    if ":key/" in key:  # the policy of a role names no alias
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            yield _Need(action, key, "no data is captured", "the policy of the key")


def _allows(aws: Aws, role: Role, need: _Need) -> bool:
    answer = aws.call(
        "iam", "simulate_principal_policy",
        PolicySourceArn=role.arn,
        ActionNames=[need.action],
        ResourceArns=[need.resource],
        ContextEntries=[
            {
                "ContextKeyName": "kms:ViaService",
                "ContextKeyValues": [f"s3.{aws.region}.amazonaws.com"],
                "ContextKeyType": "string",
            }
        ],
    )  # fmt: skip
    return all(one["EvalDecision"] == "allowed" for one in answer["EvaluationResults"])
