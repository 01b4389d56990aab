"""What is found in the account before anything is created: one row for each finding."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from peagle.findings import warning
from peagle.planning.company import Company
from peagle.planning.plan import Capture, Mount, Observe, Plan, Weights
from tests.unit.aws.cloud import ACCOUNT
from tests.unit.aws.network import (
    GROUP,
    S3_GATEWAY,
    SUBNETS,
    default_route,
    denied,
    refusing,
    table,
)
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.test_updates import rolled_out
from tests.unit.aws.world import NAME, World

QUOTA = "ml.g5.xlarge for endpoint usage"
MINE = f"peagle-sagemaker-us-east-1-{ACCOUNT}"
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1"
TOPIC = f"arn:aws:sns:us-east-1:{ACCOUNT}:on-call"
PLAIN = a_plan()
NETWORK = Company(subnets=SUBNETS, security_groups=(GROUP,))
PRIVATE = a_plan(company=NETWORK)
ELSEWHERE = warning("price-of-another-region", "price", "of us-east-1", "look")
NO_PRICE = warning("price-unknown", "price", "the catalogue has none", "look")


class Row(NamedTuple):
    """``codes`` are those of the findings with their levels and a word of the message or fix."""

    prepare: Callable[[World], object]
    plan: Plan
    codes: dict[str, tuple[str, str]]


def nothing(world: World) -> None:
    """The account as it is."""


def having(**changes: Any) -> Callable[[World], None]:
    """The attributes of the account that are set before."""

    def prepare(world: World) -> None:
        for name, value in changes.items():
            setattr(world.cloud, name, value)

    return prepare


def network(**changes: Any) -> Callable[[World], None]:
    def prepare(world: World) -> None:
        world.cloud.network = replace(world.cloud.network, **changes)

    return prepare


def after_deploy(quota: int | None = None, **changes: Any) -> Callable[[World], None]:
    """A deployment of ``changes`` of the plan is in service; then the quota is that."""

    def prepare(world: World) -> None:
        world.deploy(a_plan(**changes))
        if quota is not None:
            world.cloud.quotas = {QUOTA: quota}

    return prepare


def of_another_owner(world: World) -> None:
    world.deploy(PLAIN)
    world.cloud.tags[world.cloud.endpoints[NAME].arn] = {"peagle:id": "another-owner"}


def stored_elsewhere(world: World) -> None:
    world.cloud.put("theirs", "models/a/config.json", b'{"architectures": []}')
    world.cloud.put("theirs", "models/a/model.safetensors")
    world.cloud.not_allowed = {"s3:GetObject"}


def in_s3() -> Plan:
    uri = "s3://theirs/models/a/"
    weights = Weights(kind="s3", location=uri, s3_uri=uri, engine_path="/opt/ml/model")
    target = PLAIN.target.model_copy(update={"weights": weights})
    mounts = (Mount(channel=None, s3_uri=uri),)
    return PLAIN.model_copy(update={"target": target, "mounts": mounts})


def capturing(uri: str = "s3://theirs/captured/") -> Plan:
    capture = Capture(s3_uri=uri, percent=10, kms_key=KEY)
    observe = Observe(dashboard=False, capture=capture)
    return rolled_out(PLAIN, "errors").model_copy(update={"observe": observe})


def alarmed() -> Plan:
    return PLAIN.model_copy(
        update={"observe": Observe(dashboard=True, alarms=("errors",), alarm_topic=TOPIC)}
    )


def lacking(action: str) -> Callable[[World], None]:
    return having(not_allowed={action})


def denying(*operations: str) -> Callable[[World], None]:
    return having(before=denied(*operations))


ERROR, WARNING = "error", "warning"
ROWS: dict[str, Row] = {
    "plain": Row(nothing, PLAIN, {}),
    "quota of none": Row(having(quotas={QUOTA: 0}), PLAIN, {"quota-zero": (ERROR, QUOTA)}),
    "quota of one": Row(
        having(quotas={QUOTA: 1}), a_plan(instance_count=2),
        {"quota-too-small": (ERROR, QUOTA)},
    ),
    "quota unknown": Row(having(quotas={}), PLAIN, {"quota-unknown": (WARNING, "")}),
    "quota in an update": Row(
        after_deploy(1), another(PLAIN), {"quota-too-small": (ERROR, QUOTA)}
    ),
    "price unknown": Row(
        nothing, a_plan(price_per_hour_usd=None, price_date=None, findings=(NO_PRICE,)),
        {"price-unknown": (WARNING, "")},
    ),
    "price denied": Row(
        denying("get_products"),
        a_plan(price_per_hour_usd=None, price_date=None, findings=(NO_PRICE,)),
        {"price-unknown": (WARNING, "")},
    ),
    "price looked up": Row(having(price=2.0), a_plan(findings=(ELSEWHERE,)), {}),
    "name": Row(of_another_owner, another(PLAIN), {"name-in-use": (ERROR, NAME)}),
    "policy of a bucket": Row(
        stored_elsewhere, in_s3(),
        {"role-lacks-permission": (WARNING, "policy of the bucket theirs")},
    ),
    "alarms of a rollout": Row(
        lacking("cloudwatch:DescribeAlarms"), capturing(),
        {"role-lacks-permission": (ERROR, "cloudwatch:DescribeAlarms")},
    ),
    "capture to theirs": Row(
        lacking("s3:PutObject"), capturing(),
        {"role-lacks-permission": (WARNING, "the policy of the bucket theirs")},
    ),
    "capture to ours": Row(
        lacking("s3:PutObject"), capturing(f"s3://{MINE}/captured"),
        {"role-lacks-permission": (ERROR, f"arn:aws:s3:::{MINE}/captured/{NAME}/*")},
    ),
    "network": Row(nothing, PRIVATE, {}),
    "no route": Row(
        network(route_tables=[table()]), PRIVATE,
        {"network-unreachable": (ERROR, "huggingface.co")},
    ),
    "internet gateway": Row(
        network(route_tables=[table(default_route(GatewayId="igw-1"))]), PRIVATE,
        {"network-unreachable": (ERROR, SUBNETS[0])},
    ),
    "other route": Row(
        network(route_tables=[table(default_route(TransitGatewayId="tgw-1"))]), PRIVATE,
        {},
    ),
    "network unknown": Row(
        denying("describe_subnets"), PRIVATE, {"network-unknown": (WARNING, "ec2:DescribeSubnets")}
    ),
    "routes unknown": Row(
        denying("describe_route_tables"), PRIVATE, {"network-unknown": (WARNING, "")}
    ),
    "network interfaces": Row(
        lacking("ec2:CreateNetworkInterface"), PRIVATE,
        {"role-lacks-permission": (ERROR, "ec2:CreateNetworkInterface")},
    ),
    "topic": Row(having(topics={TOPIC: {}}), alarmed(), {}),
    "topic unknown": Row(denying("get_topic_attributes"), alarmed(), {}),
    "no topic": Row(nothing, alarmed(), {"topic-missing": (ERROR, TOPIC)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_the_account_has_these_findings(world: World, name: str) -> None:
    row = ROWS[name]
    world.cloud.buckets |= {"theirs": {}, MINE: {}}
    row.prepare(world)
    findings = world.preflight(row.plan).findings
    findings = tuple(each for each in findings if each.code != "weights-not-pinned")
    assert {each.code: each.level for each in findings} == {
        code: level for code, (level, _) in row.codes.items()
    }
    for each in findings:
        assert row.codes[each.code][1] in f"{each.message} {each.fix}"


def unreadable(world: World, head: Path) -> None:
    world.cloud.not_allowed = {"s3:GetObject"}


def not_simulated(world: World, head: Path) -> None:
    world.cloud.before = refusing("simulate_principal_policy", "Throttling")


@pytest.mark.parametrize(("prepare", "codes"), [
    (unreadable, {"role-lacks-permission": "error"}),
    (not_simulated, {"role-permission-unknown": "warning"}),
])  # fmt: skip
def test_what_is_uploaded_has_these_findings(
    world: World, head: Path, prepare: Callable[[World, Path], None], codes: dict[str, str]
) -> None:
    prepare(world, head)
    assert {each.code: each.level for each in world.preflight(a_plan(head)).findings} == codes


@pytest.mark.parametrize("interface", [False, True])
def test_weights_in_s3_need_a_way_to_s3(world: World, head: Path, interface: bool) -> None:
    """A gateway endpoint, or an interface endpoint, which has a private address."""
    plan = a_plan(head, company=NETWORK)
    local = plan.target.weights.model_copy(update={"engine_path": "/opt/ml/model/target"})
    environment = plan.environment | {"SM_VLLM_MODEL": "/opt/ml/model/target"}
    target = plan.target.model_copy(update={"weights": local})
    plan = plan.model_copy(update={"target": target, "environment": environment})
    endpoint: dict[str, Any] = dict(S3_GATEWAY)
    if interface:
        endpoint |= {"VpcEndpointType": "Interface", "RouteTableIds": []}
    world.cloud.network.route_tables = [table()]
    world.cloud.network.endpoints = []
    codes = [each.code for each in world.preflight(plan).findings]
    assert codes == ["network-unreachable"]
    world.cloud.network.endpoints = [endpoint]
    assert not world.preflight(plan).findings
