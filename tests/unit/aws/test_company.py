"""Deploy in a company's account: its VPC is checked first, and its settings are kept."""

from pathlib import Path
from typing import Any

import pytest

from peagle.findings import Finding
from peagle.planning.company import Company
from peagle.planning.plan import Plan
from tests.unit.aws.network import SUBNETS, VPC_OPTIONS, table
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import World

KEY = "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab"


def company_plan(folder: Path | None = None, **settings: Any) -> Plan:
    return a_plan(folder, company=Company(**settings))


def vpc_plan(folder: Path | None = None, **settings: Any) -> Plan:
    return company_plan(folder, **VPC_OPTIONS, **settings)


def findings(world: World, plan: Plan) -> dict[str, Finding]:
    return {finding.code: finding for finding in world.preflight(plan).findings}


def test_a_table_of_one_subnet_counts_for_that_subnet(world: World) -> None:
    tables = [*world.cloud.network.route_tables, table(subnet=SUBNETS[1])]
    world.cloud.network.route_tables = tables
    finding = findings(world, vpc_plan())["network-unreachable"]
    assert SUBNETS[1] in finding.message
    assert SUBNETS[0] not in finding.message


@pytest.mark.thorough
def test_files_without_the_key_are_uploaded_again(world: World, head: Path) -> None:
    world.deploy(company_plan(head))
    before = world.cloud.calls.count("upload_file")
    world.deploy(company_plan(head, kms_key=KEY))
    encrypted = world.cloud.calls.count("upload_file")
    world.deploy(company_plan(head, kms_key=KEY))
    assert encrypted == 2 * before
    assert world.cloud.calls.count("upload_file") == encrypted


def test_leaving_out_the_network_is_shown(world: World) -> None:
    world.deploy(vpc_plan(kms_key=KEY))
    preflight = world.preflight(a_plan())
    assert preflight.change == "update"
    texts = [change.text for change in preflight.changes]
    assert f"subnets {SUBNETS[0]}, {SUBNETS[1]} -> none" in texts
    assert any(text.startswith("KMS key ") for text in texts)


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
