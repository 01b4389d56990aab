"""What the company's VPC, the execution role and the topic of alarms let a deployment do: checked
before anything is created, as SageMaker reports a wrong network after minutes of a starting
instance. What these credentials may not look at is reported as not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator

from peagle.aws import vpc
from peagle.aws.client import Aws
from peagle.aws.errors import AccessDenied
from peagle.aws.iam import Role
from peagle.aws.s3 import default_bucket
from peagle.aws.vpc import SecurityGroup
from peagle.checkpoints.files import CONFIG
from peagle.checks.facts import destinations
from peagle.errors import CloudError, Fix
from peagle.findings import Finding, error, finding, warning
from peagle.planning.plan import Plan
from peagle.render.alarms import rollback_alarm_names
from peagle.s3uri import S3Uri

ROLE_ACTIONS = (
    "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface", "ec2:DeleteNetworkInterfacePermission",
    "ec2:DescribeNetworkInterfaces", "ec2:DescribeVpcs", "ec2:DescribeDhcpOptions",
    "ec2:DescribeSubnets", "ec2:DescribeSecurityGroups",
)  # fmt: skip
"""What SageMaker does with the role to attach containers to a VPC: "Execution role permissions" of
CreateModel in SageMaker's documentation."""

_AWS_OWN_KEY = "alias/aws/sns"
"""A key of AWS, whose policy does not let CloudWatch encrypt with it."""

_KEY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}")


def network_findings(aws: Aws, plan: Plan, more_instances: int) -> Iterator[Finding]:
    """Findings about the plan's subnets and security groups, of which the change starts
    ``more_instances``; nothing without a VPC."""
    if not plan.company.in_vpc:
        return
    try:
        yield from _network_findings(aws, plan, more_instances)
    except CloudError as failed:
        yield warning(
            "network-unknown", "subnets",
            f"not known whether containers in {', '.join(plan.company.subnets)} can start: "
            f"{failed.message}",
            "allow ec2:DescribeSubnets, DescribeSecurityGroups, DescribeRouteTables and "
            "DescribeVpcEndpoints to these credentials, or check with others",
        )  # fmt: skip


def _network_findings(aws: Aws, plan: Plan, more_instances: int) -> Iterator[Finding]:
    company = plan.company
    subnets = vpc.find_subnets(aws, company.subnets)
    groups = vpc.find_security_groups(aws, company.security_groups)
    missing = [name for name in company.subnets if name not in subnets]
    missing += [name for name in company.security_groups if name not in groups]
    vpcs = sorted({each.vpc for each in subnets.values()} | {each.vpc for each in groups.values()})
    if missing or len(vpcs) > 1:
        message = f"{aws.region} has no {' and no '.join(missing)} in account {aws.account}"
        if not missing:
            message = f"subnets and security groups are of several VPCs: {', '.join(vpcs)}"
        yield error("network-missing", "subnets", message, "correct the ids, or the --region")
        return
    free = sum(subnet.free_addresses for subnet in subnets.values())
    if free < more_instances:
        message = f"the subnets have {free} free addresses; the change starts {more_instances} more"
        yield error("network-full", "subnets", message, "name larger subnets")
    # SageMaker places instances in any of the subnets: each needs a route to what is needed.
    needed = destinations(plan.environment, company.network_isolation)
    ways: dict[str, dict[str, str]] = {}
    if needed.s3 or needed.internet:
        routes = vpc.find_routes(aws, vpcs[0], company.subnets)
        ways[needed.s3] = {name: route.s3 for name, route in routes.items()}
        ways[needed.internet] = {name: route.internet for name, route in routes.items()}
        ways.pop("", None)
    public = {"endpoint", "gateway"}
    outside = [what for what, by_subnet in ways.items() if public & {*by_subnet.values()}]
    yield from _blocked(tuple(groups.values()), outside)
    for what, by_subnet in ways.items():
        without, unknown = (
            ", ".join(sorted(name for name, route in by_subnet.items() if route == kind))
            for kind in ("none", "unknown")
        )
        if without:
            fix = Fix(
                "add a NAT gateway to its routes (an internet gateway serves no container), or "
                "copy the weights to S3 and use --model-source",
                ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
            )
            if what == needed.s3:
                command = (
                    "aws", "ec2", "create-vpc-endpoint", "--vpc-id", vpcs[0], "--service-name",
                    f"com.amazonaws.{aws.region}.s3", "--route-table-ids", "ROUTE_TABLE",
                    "--region", aws.region,
                )  # fmt: skip
                fix = Fix("add a gateway endpoint for S3, which costs nothing", command)
            message = f"there is no route to {what} from {without}"
            yield error("network-unreachable", "subnets", message, fix)
        if unknown:
            message = (
                f"not known whether {what} can be reached from {unknown}: the default route leads "
                "to something other than a NAT gateway"
            )
            yield warning("network-unknown", "subnets", message, "check where it leads")


def _blocked(groups: Collection[SecurityGroup], outside: Collection[str]) -> Iterator[Finding]:
    """Whether the outbound rules evidently close the way to what is ``outside`` of the VPC. Ports
    and destinations count; network ACLs and the policies of endpoints are not looked at."""
    names, ways = ", ".join(sorted(group.id for group in groups)), {group.https for group in groups}
    message = f"no rule of {names} lets requests to port 443 leave, so nothing is reached"
    if ways != {"nowhere"}:
        message = (
            f"the rules of {names} let requests to port 443 go to private addresses only, and "
            f"{' and '.join(outside)} has public ones"
        )
    if ways == {"nowhere"} or ("anywhere" not in ways and outside):
        fix = "add an outbound rule for TCP 443, to 0.0.0.0/0 or to the prefix list of S3"
        yield error("network-blocked", "security_groups", message, fix)


def role_access_findings(
    aws: Aws, role: Role, plan: Plan, folders: Iterable[S3Uri]
) -> Iterator[Finding]:
    """Whether the role's policies let it read these prefixes in S3, attach containers to the plan's
    VPC, see the alarms of its rollout and write the data that it captures. The policies of bucket
    and key are not simulated: what these can allow is a warning."""
    for actions, resource, purpose, others, conditions in _needs(aws, role, plan, folders):
        entries = [
            {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": "string"}
            for key, value in conditions.items()
        ]
        context = {"ContextEntries": entries} if entries else {}
        try:
            response = aws.call(
                "iam", "simulate_principal_policy", PolicySourceArn=role.arn,
                ActionNames=list(actions), ResourceArns=[resource], **context,
            )  # fmt: skip
        except CloudError as failed:
            message = f"not known whether {role.name!r} has {actions[0]}: {failed.message}"
            fix = "allow iam:SimulatePrincipalPolicy on the role to these credentials, or check it"
            yield warning("role-permission-unknown", "role", message, fix)
            return
        results = response["EvaluationResults"]
        denied = [each["EvalActionName"] for each in results if each["EvalDecision"] != "allowed"]
        if not denied:
            continue
        granted = f"{resource.removesuffix(CONFIG)}*" if resource.endswith(CONFIG) else resource
        policy = {"Effect": "Allow", "Action": denied, "Resource": granted}
        command = (
            "aws", "iam", "put-role-policy", "--role-name", role.name, "--policy-name",
            f"peagle-{denied[0].partition(':')[2]}", "--policy-document",
            json.dumps({"Version": "2012-10-17", "Statement": [policy]}),
        )  # fmt: skip
        unless = f"; unless {others} does" if others else ""
        yield finding(
            "warning" if others else "error",
            "role-lacks-permission",
            "role",
            f"the policies of the role {role.name!r} do not allow {' and '.join(denied)} on "
            f"{resource}{unless}, {purpose}",
            Fix("add it; the policies in infra/iam are examples", command),
        )


Need = tuple[tuple[str, ...], str, str, str, dict[str, str]]
"""Actions, resource, what fails without them, who else may allow them ("" where only the role's
policies do), and values of condition keys."""


def _needs(aws: Aws, role: Role, plan: Plan, folders: Iterable[S3Uri]) -> Iterator[Need]:
    def policy_of(bucket: str) -> str:
        # The bucket that deploy creates has no policy.
        is_ours = bucket == default_bucket(aws.account, aws.region)
        return "" if is_ours else f"the policy of the bucket {bucket}"

    here, s3 = f"{aws.region}:{aws.account}", f"arn:{role.partition}:s3:::"
    for folder in folders:
        others, below = policy_of(folder.bucket), {"s3:prefix": folder.key}
        objects = f"{s3}{folder.bucket}/{folder.key}{CONFIG}"
        yield ("s3:GetObject",), objects, "no weights arrive", others, below
        yield ("s3:ListBucket",), f"{s3}{folder.bucket}", "no weights arrive", others, below
    if plan.company.in_vpc:
        yield ROLE_ACTIONS, "*", "SageMaker cannot attach containers to the VPC", "", {}
    through = {"kms:ViaService": f"s3.{aws.region}.amazonaws.com"}
    for name in rollback_alarm_names(plan):
        alarm = f"arn:{role.partition}:cloudwatch:{here}:alarm:{name}"
        yield (
            ("cloudwatch:DescribeAlarms",),
            alarm,
            "a rollout cannot watch its alarms",
            "",
            through,
        )
    capture = plan.observe.capture if plan.observe else None
    if capture is None:
        return
    place, purpose = S3Uri.parse(capture.s3_uri).folder, "no data is captured"
    objects = f"{s3}{place.bucket}/{place.key}{plan.name}/*"
    yield ("s3:PutObject",), objects, purpose, policy_of(place.bucket), through
    key = capture.kms_key or ""
    if _KEY_ID.fullmatch(key):
        key = f"arn:{role.partition}:kms:{here}:key/{key}"
    if ":key/" in key:  # the policy of a role names no alias
        for action in ("kms:GenerateDataKey", "kms:Decrypt"):
            yield (action,), key, purpose, "the policy of the key", through


def topic_findings(aws: Aws, plan: Plan) -> Iterator[Finding]:
    """Whether the topic of the plan's alarms exists, can be published to, and has a subscriber."""
    topic = plan.observe.alarm_topic if plan.observe else None
    if topic is None:
        return
    where = "alarm_topic"
    try:
        response = aws.find("sns", "get_topic_attributes", TopicArn=topic)
    except AccessDenied as denied:
        message = f"not known whether alarms can notify {topic}: {denied.message}"
        yield warning(
            "topic-unheard", where, message, "allow sns:GetTopicAttributes on it, or check it"
        )
        return
    attributes = response["Attributes"] if response else {}
    if response is None:
        create = ("aws", "sns", "create-topic", "--name", topic.rpartition(":")[2])
        fix = Fix("create it, or use another one", create)
        yield error("topic-missing", where, f"there is no topic {topic}", fix)
    elif attributes.get("KmsMasterKeyId", "").endswith(_AWS_OWN_KEY):
        message = f"{topic} is encrypted with {_AWS_OWN_KEY}, which CloudWatch may not use"
        fix = Fix("use a key whose policy allows cloudwatch.amazonaws.com, or no encryption")
        yield warning("topic-unheard", where, message, fix)
    elif attributes.get("SubscriptionsConfirmed", "0") == "0":
        message = f"{topic} has no confirmed subscription: no one receives its notifications"
        subscribe = (
            "aws", "sns", "subscribe", "--topic-arn", topic, "--protocol", "email",
            "--notification-endpoint", "ADDRESS",
        )  # fmt: skip
        yield warning(
            "topic-unheard", where, message, Fix("subscribe, then confirm the e-mail", subscribe)
        )
