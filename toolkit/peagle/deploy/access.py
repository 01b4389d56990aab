"""What the company's VPC and the execution role let a container do: checked before anything is
created.

SageMaker reports a wrong network after minutes of a starting instance. What these credentials may
not look at is reported as not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from peagle.aws import vpc
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied, Missing
from peagle.aws.iam import Role
from peagle.aws.s3 import default_bucket
from peagle.aws.vpc import SecurityGroup, Subnet
from peagle.checks.facts import destinations
from peagle.deploy.diff import Change
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
    missing = [subnet for subnet in company.subnets if subnet not in subnets]
    missing += [group for group in company.security_groups if group not in groups]
    if missing:
        message = f"{aws.region} has no {' and no '.join(missing)} in account {aws.account}"
        yield error("network-missing", "subnets", message, "correct the ids, or the --region")
        return
    vpcs = sorted(
        {subnet.vpc for subnet in subnets.values()} | {group.vpc for group in groups.values()}
    )
    if len(vpcs) > 1:
        message = f"subnets and security groups are of {len(vpcs)} VPCs: {', '.join(vpcs)}"
        yield error("network-of-several-vpcs", "subnets", message, "name those of one VPC")
        return
    yield from _room(tuple(subnets.values()), more_instances)
    yield from _reach(aws, plan, vpcs[0], tuple(groups.values()))


def _room(subnets: Collection[Subnet], more_instances: int) -> Iterator[Finding]:
    """Whether the subnets have an address for each new instance, and are in several zones."""
    free = sum(subnet.free_addresses for subnet in subnets)
    if free < more_instances:
        message = f"the subnets have {free} free addresses; the change starts {more_instances} more"
        yield error("network-full", "subnets", message, "name larger subnets")
    if len({subnet.zone for subnet in subnets}) == 1:
        zone = next(iter(subnets)).zone
        message = f"all subnets are in {zone}, so AWS finds instances only there"
        yield note("network-one-zone", "subnets", message, "name a subnet of another zone too")


def _blocked(groups: Collection[SecurityGroup], outside: Collection[str]) -> Iterator[Finding]:
    """Whether the outbound rules evidently close the way to what is ``outside`` of the VPC. Ports
    and destinations count; network ACLs and the policies of endpoints are not looked at."""
    names, ways = ", ".join(sorted(group.id for group in groups)), {group.https for group in groups}
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
    ways = {
        needed.s3: {name: route.s3 for name, route in routes.items()},
        needed.internet: {name: route.internet for name, route in routes.items()},
    }
    ways.pop("", None)
    public = ("endpoint", "gateway")
    yield from _blocked(groups, [what for what in ways if {*ways[what].values()} & {*public}])
    for what, by_subnet in ways.items():
        without, unknown = (
            ", ".join(sorted(name for name, route in by_subnet.items() if route == kind))
            for kind in ("none", "unknown")
        )
        if without:
            fix = _route_fix(aws, vpc_id, what == needed.s3)
            message = f"there is no route to {what} from {without}"
            yield error("network-unreachable", "subnets", message, fix)
        if unknown:
            message = (
                f"not known whether {what} can be reached from {unknown}: the default route leads "
                "to something other than a NAT gateway"
            )
            yield warning("network-route-unknown", "subnets", message, "check where it leads")


def _route_fix(aws: Aws, vpc_id: str, is_s3: bool) -> Fix:
    if is_s3:
        service = f"com.amazonaws.{aws.region}.s3"
        command = ("aws", "ec2", "create-vpc-endpoint", "--vpc-id", vpc_id, "--service-name",
                   service, "--route-table-ids", "ROUTE_TABLE", "--region", aws.region)  # fmt: skip
        return Fix("add a gateway endpoint for S3, which costs nothing", command)
    return Fix(
        "add a NAT gateway to its routes (an internet gateway serves no container, which has no "
        "public address), or copy the weights to S3 and use --model-source",
        ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
    )


def loosened_findings(changed: Iterable[Change]) -> Iterator[Finding]:
    """A warning about what a company prescribed for the deployment and an update leaves out."""
    lost = [
        change
        for change in changed
        if change.path in _PRESCRIBED and change.before and not change.after
    ]
    if lost:
        texts = "; ".join(change.text for change in lost)
        message = f"the update leaves out what the deployment has: {texts}"
        fix = f"set {' and '.join(change.path for change in lost)} to keep them"
        yield warning("company-settings-removed", lost[0].path, message, fix)


def vocabulary_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the vocabulary that an isolated container reads from the mounted weights is there."""
    folder = plan.environment.get(VOCABULARY_VARIABLE, "")
    mount = next((mount for mount in plan.mounts if mount.channel is None), None)
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
        return  # the weights themselves are reported as not readable
    except Missing:
        uri = S3Uri(place.bucket, key).uri
        message = f"{uri} does not exist, and a container without a network cannot download it"
        fix = Fix(
            "put the file there, or copy the pair again from a folder that holds it",
            ("peagle", "weights", "sync", "PAIR", mount.s3_uri),
        )
        yield error("mounted-vocabulary-missing", "network_isolation", message, fix)


_KEY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}")


def role_access_findings(aws: Aws, role: Role, plan: Plan) -> Iterator[Finding]:
    """Whether the role's policies let it attach containers to the plan's VPC, see the alarms of its
    rollout and write the data that it captures.

    IAM simulates them without the policies of bucket and key, which may allow what they do not: a
    permission that these can give is a warning, except on the bucket that this toolkit creates.
    """
    if plan.company.in_vpc:
        try:
            lacking = _denied(aws, role, ROLE_ACTIONS, "*")
        except CloudError as failed:
            message = f"not known whether {role.name!r} may attach containers to a VPC: "
            yield warning("role-network-unknown", "role", f"{message}{failed.message}", _SIMULATE)
        else:
            if lacking:
                yield _lacks_vpc(role, lacking)
    for action, resource, purpose, others in _needs(aws, role, plan):
        try:
            is_denied = _denied(aws, role, (action,), resource, f"s3.{aws.region}.amazonaws.com")
        except CloudError as failed:
            message = f"not known whether {role.name!r} has {action}: {failed.message}"
            yield warning("role-permission-unknown", "role", message, _SIMULATE)
            return
        if is_denied:
            yield _lacks(role, action, resource, purpose, others)


_SIMULATE = "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it"


def _lacks_vpc(role: Role, lacking: Iterable[str]) -> Finding:
    command = (
        "aws", "iam", "put-role-policy", "--role-name", role.name, "--policy-name", "peagle-vpc",
        "--policy-document", "file://execution-role-vpc-policy.json",
    )  # fmt: skip
    return error(
        "role-cannot-use-vpc",
        "role",
        f"the policies of the role {role.name!r} do not allow {' and '.join(lacking)}",
        Fix("attach infra/iam/execution-role-vpc-policy.json, with the account filled in", command),
    )


def _lacks(role: Role, action: str, resource: str, purpose: str, others: str) -> Finding:
    unless = f"; unless {others} does" if others else ""
    policy = {"Effect": "Allow", "Action": action, "Resource": resource}
    command = (
        "aws", "iam", "put-role-policy", "--role-name", role.name, "--policy-name",
        f"peagle-{action.partition(':')[2]}", "--policy-document",
        json.dumps({"Version": "2012-10-17", "Statement": [policy]}),
    )  # fmt: skip
    return finding(
        "warning" if others else "error",
        "role-lacks-permission",
        "role",
        f"the policies of the role {role.name!r} do not allow {action} on {resource}{unless}, "
        f"{purpose}",
        Fix("add it; infra/iam/execution-role-policy.json is an example", command),
    )


def _needs(aws: Aws, role: Role, plan: Plan) -> Iterator[tuple[str, str, str, str]]:
    """Action, resource, what fails without it, and who else may allow it: "" where only the role's
    policies do."""
    here = f"{aws.region}:{aws.account}"
    for name in rollback_alarm_names(plan):
        alarm = f"arn:{role.partition}:cloudwatch:{here}:alarm:{name}"
        yield "cloudwatch:DescribeAlarms", alarm, "a rollout cannot watch its alarms", ""
    capture = plan.observe.capture if plan.observe else None
    if capture is None:
        return
    place, purpose = S3Uri.parse(capture.s3_uri).folder, "no data is captured"
    is_ours = place.bucket == default_bucket(aws.account, aws.region)
    objects = f"arn:{role.partition}:s3:::{place.bucket}/{place.key}{plan.name}/*"
    others = "" if is_ours else f"the policy of the bucket {place.bucket}"
    yield "s3:PutObject", objects, purpose, others
    key = capture.kms_key or ""
    if _KEY_ID.fullmatch(key):
        key = f"arn:{role.partition}:kms:{here}:key/{key}"
    if ":key/" in key:  # the policy of a role names no alias
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            yield action, key, purpose, "the policy of the key"


def _denied(
    aws: Aws, role: Role, actions: Iterable[str], resource: str, service: str = ""
) -> list[str]:
    """Which of the actions the role's policies do not allow; ``service``: called through that."""
    through: dict[str, Any] = {}
    if service:
        value = {"ContextKeyValues": [service], "ContextKeyType": "string"}
        through = {"ContextEntries": [{"ContextKeyName": "kms:ViaService", **value}]}
    answer = aws.call(
        "iam", "simulate_principal_policy",
        PolicySourceArn=role.arn, ActionNames=list(actions), ResourceArns=[resource], **through,
    )  # fmt: skip
    results = answer["EvaluationResults"]
    return [each["EvalActionName"] for each in results if each["EvalDecision"] != "allowed"]
