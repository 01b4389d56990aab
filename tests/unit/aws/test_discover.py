"""Deployments are found by their tags, on a machine that did not make them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import InstanceTable
from peagle.deploy import records
from peagle.deploy.comparison import CandidateNotProved
from peagle.deploy.discover import find_deployment
from peagle.deploy.proving import make_served_request
from peagle.deploy.removal import destroy
from peagle.deploy.revisions import CANDIDATE
from peagle.deploy.state import Deployment, served_by_plan
from peagle.deploy.status import list_deployments
from peagle.errors import UserError
from peagle.planning.plan import Observe
from tests.support import raises_code
from tests.unit.aws.cloud import Engine, foreign_alarm
from tests.unit.aws.network import interrupting
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.test_updates import rolled_out
from tests.unit.aws.world import NAME, World


def prices() -> InstanceTable:
    return load_catalog().instances


def elsewhere(world: World) -> Deployment:
    """The deployment as a second machine finds it."""
    record = world.record()
    if record:
        records.remove_record(record)
    deployment = find_deployment(world.aws, NAME, prices)
    assert deployment is not None
    return deployment


def test_a_deployment_is_found_without_its_record(world: World, head: Path) -> None:
    made = world.deploy(a_plan(head))
    record = elsewhere(world)
    assert record.id == made.id
    assert record.serving.fingerprint == made.serving.fingerprint
    assert record.serving.served == made.serving.served.model_copy(update={"price_date": None})
    assert record.owner == ""
    assert {r.type for r in record.resources} == {r.type for r in made.resources}
    assert record.of_type("S3Objects")[0].keys == made.of_type("S3Objects")[0].keys


def test_another_machine_removes_alarms_filters_and_dashboard(world: World) -> None:
    watched = rolled_out(a_plan()).model_copy(
        update={"observe": Observe(dashboard=True, log_retention_days=30)}
    )
    made = world.deploy(watched)
    world.cloud.put_alarm(f"{NAME}-ttft-p90", **foreign_alarm("pair"))
    record = elsewhere(world)
    destroy(world.context(record))
    assert {r.text for r in record.resources} == {r.text for r in made.resources}
    assert set(world.cloud.made_alarms) == {f"{NAME}-ttft-p90"}
    assert world.cloud.metric_filters == {}
    assert world.cloud.dashboards == {}


def test_a_model_without_an_endpoint_is_found(world: World) -> None:
    world.cloud.before = interrupting("create_endpoint_config")
    with pytest.raises(KeyboardInterrupt):
        world.deploy(a_plan())
    record = elsewhere(world)
    assert [r.type for r in record.resources] == ["Model"]
    assert record.current.served.image == a_plan().runtime.image


def test_what_was_deleted_a_moment_ago_is_not_found(world: World) -> None:
    world.deploy(a_plan())
    world.cloud.deleted = dict(world.cloud.tags)
    world.destroy()
    assert find_deployment(world.aws, NAME, prices) is None


def test_an_endpoint_that_the_index_of_tags_does_not_have_yet_is_found(world: World) -> None:
    made = world.deploy(a_plan())
    world.cloud._get_resources = lambda **_: {"ResourceTagMappingList": []}  # type: ignore[method-assign]
    record = elsewhere(world)
    assert record.serving.name == made.serving.name
    assert record.serving.model == made.serving.model
    assert {each.type for each in record.resources} == {"Endpoint", "EndpointConfig", "Model"}


# Files of this machine that are truncated or hold something else: each stops one entry.
DAMAGE: dict[str, bytes] = {
    "empty": b"", "cut short": b'{"format": 3, "name": "pe', "no UTF-8": b"\xff\xfe{}",
    "a list": b"[]", "deep": b"[" * 100_000, "endless digits": b'{"format": ' + b"9" * 5_000 + b"}",
    "an earlier format": b'{"format": 2, "serving": []}',
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_is_one_error_of_that_deployment(world: World, name: str) -> None:
    made = world.deploy(a_plan())
    path = records.record_path(made.scope, made.region, "peagle-other")
    path.write_bytes(DAMAGE[name])
    listing = list_deployments(world.aws, [made.region], lambda: None)
    assert [row.name for row in listing.rows] == [NAME]
    (damaged,) = listing.damaged
    assert str(path) in damaged.message
    assert damaged.fix
    assert "\n" not in str(damaged)
    assert records.load_record(*made.key) == made
    with raises_code("record-damaged", UserError):
        records.find_record("peagle-other")


# What another machine deployed has no plan here: the user's own catalogue says what to prove.
OF_CATALOGUE = "openai/gpt-oss-20b"
OWN_PROMPT = "A question of the user's own catalogue?"


def own_catalog() -> Catalog:
    """The bundled catalogue with the target of ``a_plan``, which has one prompt."""
    bundled = load_catalog()
    bundled_target = bundled.targets["openai/gpt-oss-20b"]
    proof = bundled_target.proof.model_copy(update={"prompts": (OWN_PROMPT,)})
    target = bundled_target.model_copy(update={"id": "a/target", "proof": proof})
    return replace(bundled, targets={**bundled.targets, target.id: target})


@pytest.mark.parametrize(("tagged", "named"), [
    (f"{OF_CATALOGUE}+amazon/GPT-OSS-20B-P-EAGLE", f"{OF_CATALOGUE}+p-eagle"),
    (f"{OF_CATALOGUE}+acme/head", OF_CATALOGUE),
    (OF_CATALOGUE, OF_CATALOGUE),
    ("acme/unknown+acme/head", ""),
    ("", ""),
])  # fmt: skip
def test_the_commands_of_a_proof_name_what_the_catalogue_has(tagged: str, named: str) -> None:
    served = served_by_plan(a_plan()).model_copy(update={"pair": tagged})
    assert make_served_request(served, load_catalog()).pair == named


def _rollback(world: World) -> None:
    world.deploy(another(a_plan()))
    world.forget()
    world.rollback()


def _promote(world: World) -> None:
    world.compare(another(a_plan()))
    world.forget()
    world.promote()


def _drop(world: World) -> None:
    world.compare(another(a_plan()))
    world.forget()
    world.drop()


def _failed_comparison(world: World) -> None:
    world.forget()
    world.cloud.engines[CANDIDATE] = Engine(acceptance=1.2)
    with pytest.raises(CandidateNotProved):
        world.compare(another(a_plan()))


@pytest.mark.parametrize("change", [_rollback, _promote, _drop, _failed_comparison])
def test_a_revision_without_a_plan_is_proved_by_the_users_catalogue(
    world: World, change: Callable[[World], None]
) -> None:
    world.catalog = own_catalog()
    world.deploy(a_plan())
    change(world)
    assert world.cloud.engine.prompts[-1]["messages"][0]["content"] == OWN_PROMPT
