"""How long captured data is kept: our rule in the lifecycle of a bucket that others use too."""

from typing import Any

import pytest

from peagle.aws.errors import AccessDenied
from peagle.catalog import load_catalog
from peagle.errors import Unsupported
from peagle.planning.plan import Capture, Observe, Plan
from peagle.render import render
from peagle.render.resources import rule_id
from peagle.s3uri import S3Uri
from tests.support import raises_code
from tests.unit.aws.network import denied
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

CATALOG = load_catalog()
BUCKET = "captured"
FOREIGN = {
    "ID": "theirs",
    "Status": "Enabled",
    "Filter": {"Prefix": "a/"},
    "Expiration": {"Days": 9},
}
OWN: dict[str, Any] = {
    "ID": rule_id(NAME, "us-east-1", S3Uri(BUCKET, f"a/{NAME}/")),
    "Status": "Enabled",
    "Filter": {"Prefix": f"a/{NAME}/"},
    "Expiration": {"Days": 7},
    "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
}


def captured(plan: Plan, days: int | None = 7, uri: str = f"s3://{BUCKET}/a") -> Plan:
    capture = Capture(s3_uri=uri, percent=100, retention_days=days)
    observe = Observe(dashboard=False, capture=capture)
    return plan.model_copy(update={"observe": observe})


def rules(world: World) -> list[dict[str, Any]]:
    return world.cloud.lifecycles.get(BUCKET, [])


def test_the_rule_is_added_to_those_of_others_before_the_endpoint_and_destroyed(
    world: World,
) -> None:
    world.cloud.lifecycles[BUCKET] = [FOREIGN]
    world.deploy(captured(a_plan()))
    assert rules(world) == [FOREIGN, OWN]
    calls = world.cloud.calls
    assert calls.index("put_bucket_lifecycle_configuration") < calls.index("create_endpoint")
    world.deploy(captured(a_plan(), days=30))
    assert [rule["Expiration"]["Days"] for rule in rules(world)] == [9, 30]
    world.destroy()
    assert rules(world) == [FOREIGN]


def test_what_was_captured_is_deleted_also_when_nothing_is_captured_any_more(world: World) -> None:
    world.deploy(captured(a_plan()))
    world.deploy(another(a_plan()))
    assert rules(world) == [OWN]
    world.deploy(captured(another(a_plan()), days=None))
    assert rules(world) == []


def test_each_folder_of_a_bucket_keeps_its_rule_and_the_change_is_shown(world: World) -> None:
    world.deploy(captured(a_plan()))
    elsewhere = captured(another(a_plan()), uri=f"s3://{BUCKET}/b")
    changes = {change.setting: change for change in world.preflight(elsewhere).changes}
    shown = changes["captured data"]
    assert changes["captured"].after == "exists"
    world.deploy(elsewhere)
    assert (shown.before or "").startswith(f"100% of prompts and answers to s3://{BUCKET}/a")
    assert f"s3://{BUCKET}/b" in (shown.after or "")
    prefixes = [rule["Filter"]["Prefix"] for rule in rules(world)]
    assert prefixes == [f"a/{NAME}/", f"b/{NAME}/"]
    world.destroy()
    assert rules(world) == []


def test_without_the_permission_nothing_is_deployed_and_the_fix_says_how_to_go_on(
    world: World,
) -> None:
    world.cloud.before = denied("put_bucket_lifecycle_configuration")
    with pytest.raises(AccessDenied) as raised:
        world.deploy(captured(a_plan()))
    assert "s3:PutLifecycleConfiguration" in raised.value.fix
    assert "create_endpoint" not in world.cloud.calls


@pytest.mark.parametrize("format", ["cloudformation", "terraform"])
def test_a_template_owns_no_bucket(format: str) -> None:
    with raises_code("format-unsupported", Unsupported):
        render(format, captured(a_plan()), CATALOG)
    render(format, captured(a_plan(), days=None), CATALOG)
