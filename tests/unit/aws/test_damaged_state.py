"""Files of this machine that are truncated or hold something else: each stops one entry."""

from __future__ import annotations

import json

import pytest

from peagle.account import Account
from peagle.aws import sagemaker
from peagle.deploy import records
from peagle.deploy.context import DeploymentContext
from peagle.deploy.discover import find_deployment
from peagle.deploy.removal import destroy
from peagle.deploy.status import list_deployments
from peagle.errors import UserError
from tests.support import raises_code
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World

DAMAGE: dict[str, bytes] = {
    "empty": b"", "cut short": b'{"format": 3, "name": "pe', "no UTF-8": b"\xff\xfe{}",
    "zeros": b"\0" * 4_096, "null": b"null", "a list": b"[]", "a number": b"7", "text": b'"x"',
    "deep": b"[" * 100_000, "endless digits": b'{"format": ' + b"9" * 5_000 + b"}",
    "NaN": b'{"format": NaN}', "a name twice": b'{"format": 3, "format": 3}',
    "another format": b'{"format": "3"}',
    "an earlier format": b'{"format": 2, "serving": []}',
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_one_error_of_that_deployment(world: World, name: str) -> None:
    made = world.deploy(a_plan())
    path = records.record_path(made.scope, made.region, "peagle-other")
    path.write_bytes(DAMAGE[name])
    found = list_deployments(world.aws, [made.region], lambda: None)
    assert [row["name"] for row in found.rows] == [NAME]
    (damaged,) = found.damaged
    assert str(path) in damaged.message
    assert damaged.fix
    assert "\n" not in str(damaged)
    assert records.load_record(*made.key) == made
    with raises_code("record-damaged", UserError):
        records.find_record("peagle-other")


@pytest.mark.parametrize("change", [{"ends_at": 1e18}, {"billing_since": -1.0}, None])
def test_a_damaged_record_does_not_keep_a_deployment_from_its_removal(
    world: World, change: dict[str, float] | None
) -> None:
    made = world.deploy(a_plan())
    path = records.record_path(*made.key)
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | change) if change else text[:300])
    account = Account()
    account.__dict__["aws"] = lambda region: world.aws
    listing = list_deployments(world.aws, [made.region], lambda: None)
    found, aws = account.find(NAME, complete=True)
    destroy(DeploymentContext(aws, found))
    assert [row["name"] for row in listing.rows] == [NAME]
    assert [damaged.code for damaged in listing.damaged] == ["record-damaged"]
    assert find_deployment(world.aws, NAME) is None


def test_a_tag_that_is_no_name_hides_no_other_deployment(world: World) -> None:
    made = world.deploy(a_plan())
    config = sagemaker.description(world.aws, "Model", made.current.model)
    world.aws.call(
        "sagemaker", "create_model", ModelName="other", ExecutionRoleArn=made.current.role,
        PrimaryContainer=config["PrimaryContainer"],
        Tags=[{"Key": "peagle:deployment", "Value": "no name/of: one"}],
    )  # fmt: skip
    listing = list_deployments(world.aws, [made.region], lambda: None)
    assert [row["name"] for row in listing.rows] == [NAME]
    assert [damaged.code for damaged in listing.damaged] == ["tags-damaged"]
