"""``--prove-first``: the update is proved on a temporary endpoint, and then made."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.deploy.revisions import temporary_name
from peagle.deploy.status import cost_of_remaining
from peagle.deploy.temporary import NotProvedFirst
from tests.support import raises_code
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

TRIAL = temporary_name(NAME)


@pytest.fixture
def requests(world: World, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests that created configurations."""
    sent: list[dict[str, Any]] = []
    create = world.cloud._create_endpoint_config

    def recorded(**given: Any) -> Any:
        sent.append(given)
        return create(**given)

    monkeypatch.setattr(world.cloud, "_create_endpoint_config", recorded)
    return sent


@pytest.mark.thorough
def test_the_update_is_proved_on_one_instance_and_then_made(
    world: World, requests: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy(a_plan(instance_count=2))
    asked: list[str] = []
    invoke = world.cloud._invoke_endpoint

    def recorded(**given: Any) -> Any:
        asked.append(given["EndpointName"])
        return invoke(**given)

    monkeypatch.setattr(world.cloud, "_invoke_endpoint", recorded)

    world.deploy(another(a_plan(instance_count=2)), prove_first=True)

    _, temporary, update = requests
    assert [one["InitialInstanceCount"] for one in temporary["ProductionVariants"]] == [1]
    assert "RoutingConfig" not in temporary["ProductionVariants"][0]
    assert (
        temporary["ProductionVariants"][0]["ModelName"]
        == (update["ProductionVariants"][0]["ModelName"])
    )
    assert list(dict.fromkeys(asked)) == [TRIAL, NAME]
    assert set(world.cloud.endpoints) == {NAME}
    assert len(world.cloud.configs) == 2
    assert world.state() == "InService"


def test_without_a_proof_the_endpoint_is_not_changed(world: World) -> None:
    world.deploy(a_plan())
    before = dict(world.cloud.configs)
    world.cloud.engine.acceptance = 1.4

    with raises_code("not-proved-first", NotProvedFirst) as failed:
        world.deploy(another(a_plan()), prove_first=True)

    assert failed.value.exit_code == 3
    assert f"{NAME} was not changed" in failed.value.message
    assert "update_endpoint" not in world.cloud.calls
    assert world.cloud.configs == before
    assert set(world.cloud.models) == set(before)
    assert set(world.cloud.endpoints) == {NAME}
    assert world.state() == "InService"


def test_a_temporary_endpoint_that_a_crash_left_costs_and_is_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy(a_plan())
    _crash_during_the_proof(world, monkeypatch)
    record = world.record()
    assert record is not None
    assert set(world.cloud.endpoints) == {NAME, TRIAL}
    assert cost_of_remaining(world.aws, record) == pytest.approx(2 * 1.408)

    world.deploy(a_plan())

    assert set(world.cloud.endpoints) == {NAME}
    assert len(world.cloud.configs) == 1
    record = world.record()
    assert record is not None
    assert cost_of_remaining(world.aws, record) == pytest.approx(1.408)
    world.destroy()
    assert world.cloud.is_empty


def test_another_machine_removes_what_a_crash_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.deploy(a_plan())
    _crash_during_the_proof(world, monkeypatch)
    world.forget()

    world.deploy(another(a_plan()))

    assert set(world.cloud.endpoints) == {NAME}
    assert len(world.cloud.configs) == 2
    world.destroy()
    assert world.cloud.is_empty


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _crash_during_the_proof(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a temporary endpoint behind."""
    with monkeypatch.context() as patch:
        patch.setattr("peagle.deploy.temporary.remove", lambda context: None)
        patch.setattr("peagle.deploy.temporary.prove_request", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            world.deploy(another(a_plan()), prove_first=True)
