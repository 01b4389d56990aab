"""Deploy in a company's account: its VPC is checked first, and its settings are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.findings import Finding
from peagle.planning.company import Company
from peagle.planning.plan import Mount, Plan, Weights
from tests.unit.aws.cloud import ROLE, service_error
from tests.unit.aws.network import (
    GROUP,
    S3_GATEWAY,
    SUBNETS,
    VPC_OPTIONS,
    default_route,
    group,
    subnet,
    table,
)
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

KEY = "arn:aws:kms:us-east-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def company_plan(folder: Path | None = None, **settings: Any) -> Plan:
    return a_plan(folder, company=Company(**settings))


def vpc_plan(folder: Path | None = None, **settings: Any) -> Plan:
    return company_plan(folder, **VPC_OPTIONS, **settings)


def findings(world: World, plan: Plan) -> dict[str, Finding]:
    return {finding.code: finding for finding in world.preflight(plan).findings}


def about_network(world: World, plan: Plan) -> list[str]:
    return sorted(code for code in findings(world, plan) if "network" in code or "vpc" in code)


def test_a_vpc_that_reaches_everything_gets_no_finding(world: World) -> None:
    assert about_network(world, vpc_plan()) == []


def test_without_a_vpc_ec2_is_not_asked(world: World) -> None:
    world.deploy(a_plan())
    assert not [call for call in world.cloud.calls if "subnet" in call or "vpc" in call]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"subnets": []}, "network-missing", SUBNETS[0]),
        ({"groups": []}, "network-missing", GROUP),
        ({"groups": [group(vpc="vpc-2")]}, "network-of-several-vpcs", "vpc-2"),
        (
            {"subnets": [subnet(name, "us-east-1a", free=0) for name in SUBNETS]},
            "network-full",
            "0 free",
        ),
        (
            {"groups": [group(IpProtocol="tcp", FromPort=80, ToPort=80)]},
            "network-blocked",
            "port 443",
        ),
        ({"route_tables": [table()]}, "network-unreachable", "huggingface.co"),
        (
            {"route_tables": [table(default_route(GatewayId="igw-1"))]},
            "network-unreachable",
            SUBNETS[0],
        ),
    ],
)
def test_a_network_in_which_no_container_starts_is_an_error(
    world: World, change: dict[str, Any], code: str, words: str
) -> None:
    world.cloud.network = replace(world.cloud.network, **change)

    found = findings(world, vpc_plan())[code]
    assert found.level == "error"
    assert words in found.message
    assert found.fix


@pytest.mark.parametrize(
    ("egress", "blocked"),
    [
        ({"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}, False),
        ({"IpRanges": [{"CidrIp": "10.0.0.0/16"}]}, True),
        ({"Ipv6Ranges": [{"CidrIpv6": "fd00::/8"}]}, True),
        ({"Ipv6Ranges": [{"CidrIpv6": "::/0"}]}, False),
        ({"PrefixListIds": [{"PrefixListId": "pl-63a5400a"}]}, False),
        ({"UserIdGroupPairs": [{"GroupId": GROUP}]}, True),
    ],
)
def test_rules_to_private_addresses_only_do_not_reach_what_is_public(
    world: World, egress: dict[str, Any], blocked: bool
) -> None:
    world.cloud.network.groups = [group(IpProtocol="-1", **egress)]

    found = findings(world, vpc_plan())
    assert ("network-blocked" in found) is blocked
    if blocked:
        assert "private addresses only" in found["network-blocked"].message


def test_an_interface_endpoint_has_a_private_address(world: World, head: Path) -> None:
    local = a_plan(head).target.weights.model_copy(update={"engine_path": "/opt/ml/model/target"})
    plan = vpc_plan(head)
    target = plan.target.model_copy(update={"weights": local})
    environment = plan.environment | {"SM_VLLM_MODEL": "/opt/ml/model/target"}
    plan = plan.model_copy(update={"target": target, "environment": environment})
    network = world.cloud.network
    network.groups = [group(IpProtocol="-1", IpRanges=[{"CidrIp": "10.0.0.0/16"}])]

    assert about_network(world, plan) == ["network-blocked"]
    network.endpoints = [S3_GATEWAY | {"VpcEndpointType": "Interface", "RouteTableIds": []}]
    assert about_network(world, plan) == []


def test_a_table_of_one_subnet_counts_for_that_subnet(world: World) -> None:
    tables = [*world.cloud.network.route_tables, table(subnet=SUBNETS[1])]
    world.cloud.network.route_tables = tables

    found = findings(world, vpc_plan())["network-unreachable"]
    assert SUBNETS[1] in found.message
    assert SUBNETS[0] not in found.message


def test_weights_in_s3_need_a_gateway_endpoint_or_a_nat_gateway(world: World, head: Path) -> None:
    network, plan = world.cloud.network, vpc_plan(head)
    local = plan.target.weights.model_copy(update={"engine_path": "/opt/ml/model/target"})
    target = plan.target.model_copy(update={"weights": local})
    environment = plan.environment | {"SM_VLLM_MODEL": "/opt/ml/model/target"}
    plan = plan.model_copy(update={"target": target, "environment": environment})

    network.route_tables = [table()]
    assert about_network(world, plan) == []
    network.endpoints = []
    found = findings(world, plan)["network-unreachable"]
    assert "S3" in found.message
    assert "create-vpc-endpoint" in (found.command or ())
    network.endpoints = [S3_GATEWAY | {"VpcEndpointType": "Interface", "RouteTableIds": []}]
    assert about_network(world, plan) == []


@pytest.mark.parametrize("target", [{"TransitGatewayId": "tgw-1"}, {"GatewayId": "vgw-1"}])
def test_a_route_to_something_else_is_reported_as_not_known(
    world: World, target: dict[str, str]
) -> None:
    world.cloud.network.route_tables = [table(default_route(**target))]

    found = findings(world, vpc_plan())["network-route-unknown"]
    assert (found.level, found.message.split()[:2]) == ("warning", ["not", "known"])


def test_subnets_of_one_zone_are_a_note(world: World) -> None:
    world.cloud.network.subnets = [subnet(name, "us-east-1a") for name in SUBNETS]
    assert findings(world, vpc_plan())["network-one-zone"].level == "note"


@pytest.mark.parametrize(
    "operation", ["describe_subnets", "describe_security_groups", "describe_route_tables",
                  "describe_vpc_endpoints"],
)  # fmt: skip
def test_a_network_that_may_not_be_looked_at_is_not_known(world: World, operation: str) -> None:
    def deny(called: str) -> None:
        if called == operation:
            raise service_error("UnauthorizedOperation", "You are not authorized", operation)

    world.cloud.before = deny
    found = findings(world, vpc_plan())["network-unknown"]
    assert found.level == "warning"
    assert "ec2:DescribeSubnets" in found.fix


def test_a_role_that_may_not_attach_containers_is_an_error(world: World) -> None:
    world.cloud.not_allowed = {"ec2:CreateNetworkInterface"}

    found = findings(world, vpc_plan())["role-cannot-use-vpc"]
    assert "ec2:CreateNetworkInterface" in found.message
    assert "role-cannot-use-vpc" not in findings(world, a_plan())


def test_a_vocabulary_that_is_not_beside_the_weights_is_an_error(world: World) -> None:
    world.cloud.put("peagle-models", "oss/target/config.json", b"{}")
    weights = Weights(kind="s3", location="s3://peagle-models/oss/target/",
                      engine_path="/opt/ml/model")  # fmt: skip
    plan = company_plan(network_isolation=True)
    plan = plan.model_copy(update={
        "target": plan.target.model_copy(update={"weights": weights}),
        "mounts": (Mount(channel=None, s3_uri=weights.location),),
        "environment": plan.environment | {"TIKTOKEN_ENCODINGS_BASE": "/opt/ml/model"},
    })  # fmt: skip

    found = findings(world, plan)["mounted-vocabulary-missing"]
    assert "oss/target/o200k_base.tiktoken" in found.message
    world.cloud.put("peagle-models", "oss/target/o200k_base.tiktoken", b"x")
    assert "mounted-vocabulary-missing" not in findings(world, plan)


def test_a_deploy_creates_everything_with_the_settings(world: World, head: Path) -> None:
    world.deploy(vpc_plan(head, kms_key=KEY, tags={"team": "ml"}), role=ROLE)

    (model,), (config,) = world.cloud.models.values(), world.cloud.configs.values()
    assert model["VpcConfig"] == {"Subnets": list(SUBNETS), "SecurityGroupIds": [GROUP]}
    assert config["KmsKeyId"] == KEY
    assert [tags["team"] for tags in world.cloud.tags.values()] == ["ml"] * 3
    (bucket,) = world.cloud.buckets
    assert {"Key": "team", "Value": "ml"} in world.cloud.bucket_tags[bucket]
    assert {one["SSEKMSKeyId"] for one in world.cloud.buckets[bucket].values()} == {KEY}


@pytest.mark.thorough
def test_files_without_the_key_are_uploaded_again(world: World, head: Path) -> None:
    world.deploy(company_plan(head))
    before = world.cloud.calls.count("upload_file")
    world.deploy(company_plan(head, kms_key=KEY))
    encrypted = world.cloud.calls.count("upload_file")
    world.deploy(company_plan(head, kms_key=KEY))

    assert encrypted == 2 * before
    assert world.cloud.calls.count("upload_file") == encrypted


def test_another_network_is_shown_and_leaving_it_out_is_a_warning(world: World) -> None:
    world.deploy(vpc_plan(kms_key=KEY))

    found = world.preflight(a_plan())
    assert found.change == "update"
    texts = [change.text for change in found.changes]
    assert f"subnets {SUBNETS[0]}, {SUBNETS[1]} -> none" in texts
    (warned,) = [f for f in found.findings if f.code == "company-settings-removed"]
    assert "subnets" in warned.fix
    assert "kms_key" in warned.fix
    assert not [
        f for f in world.preflight(another(vpc_plan(kms_key=KEY))).findings
        if f.code == "company-settings-removed"
    ]  # fmt: skip


def test_other_tags_are_added_without_an_update(world: World) -> None:
    first = company_plan(tags={"team": "ml"})
    world.deploy(first)
    assert world.preflight(company_plan(tags={"team": "web", "a": "b"})).change == "nothing"
    world.deploy(company_plan(tags={"team": "web", "a": "b"}))

    assert "update_endpoint" not in world.cloud.calls
    assert len(world.cloud.models) == 1
    for tags in world.cloud.tags.values():
        assert (tags["team"], tags["a"]) == ("web", "b")
    calls = len(world.cloud.calls)
    world.deploy(company_plan(tags={"team": "web", "a": "b"}))
    assert "add_tags" not in world.cloud.calls[calls:]


def test_a_rollback_returns_to_the_network_and_the_tags_of_before(world: World) -> None:
    before = vpc_plan(tags={"team": "ml"})
    world.deploy(before)
    config = world.serves()
    world.deploy(another(vpc_plan(tags={"team": "web"})))
    world.rollback()

    assert world.serves() == config
    endpoint = world.cloud.endpoints[NAME]
    assert world.cloud.tags[endpoint.arn]["team"] == "ml"
    model = world.cloud.models[world.cloud.configs[config]["ProductionVariants"][0]["ModelName"]]
    assert model["VpcConfig"]["Subnets"] == list(SUBNETS)


def test_another_machine_sees_the_network_and_the_key(world: World) -> None:
    world.deploy(vpc_plan(kms_key=KEY, tags={"team": "ml"}))
    world.forget()

    found = world.preflight(another(vpc_plan(kms_key=KEY)))
    assert found.record is not None
    served = found.record.current.served
    assert served.subnets == tuple(sorted(SUBNETS))
    assert served.kms_key == KEY
    assert not [c for c in found.changes if c.setting in ("subnets", "kms_key")]
