"""A deploy or destroy that is interrupted at any call keeps every resource on record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.aws.interruptions import interrupt, moments_of, snapshot
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import World

pytestmark = pytest.mark.thorough


def _assert_removable(world: World, where: str) -> None:
    world.destroy()
    assert world.cloud.is_empty, where
    assert world.record() is None, where


@pytest.mark.usefixtures("plain_writes")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("first", ["create", "update"])
def test_an_interrupted_deploy_keeps_every_resource_on_record(
    head: Path, moment: str, first: str
) -> None:
    world = World()
    if first == "update":
        world.deploy(another(a_plan(head)))
    start = snapshot(world)
    moments = moments_of(world, lambda: world.deploy(a_plan(head)), moment)
    assert len(moments) > 10

    for number in moments:
        world = start()
        interrupt(world, number, moment, lambda: world.deploy(a_plan(head)))  # noqa: B023
        where = f"after Ctrl-C {moment} call {number}, {world.cloud.calls[-1]}"
        interrupted = snapshot(world)
        _assert_removable(world, where)

        world = interrupted()
        world.deploy(a_plan(head))
        assert world.state() == "InService", where
        expected = 2 if first == "update" else 1
        assert len(world.cloud.models) == len(world.cloud.configs) == expected, where
        _assert_removable(world, where)


@pytest.mark.usefixtures("plain_writes")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_destroy_completes_after_ctrl_c_at_any_call_of_destroy(head: Path, moment: str) -> None:
    world = World()
    world.deploy(a_plan(head))
    start = snapshot(world)

    for number in moments_of(world, world.destroy, moment):
        world = start()
        interrupt(world, number, moment, world.destroy)
        assert world.record() is not None or world.cloud.is_empty
        _assert_removable(world, f"after Ctrl-C {moment} call {number}")
