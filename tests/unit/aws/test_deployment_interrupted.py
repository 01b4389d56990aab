"""A deploy or destroy that is interrupted at any call keeps every resource on record."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.deploy.state import record_path
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, READING, World


@pytest.fixture
def plain_writes(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written without renaming, which takes half of the time of these tests."""

    def write(path: Path, document: Any) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))

    monkeypatch.setattr("peagle.deploy.state.write_json", write)


def _snapshot(world: World) -> Callable[[], World]:
    """A function that restores the account and the record as they are now."""
    path = record_path(world.aws.scope, "us-east-1", NAME)
    record = path.read_bytes() if path.exists() else None
    cloud = copy.deepcopy(world.cloud)

    def restored() -> World:
        path.unlink(missing_ok=True)
        if record is not None:
            path.write_bytes(record)
        return World(copy.deepcopy(cloud))

    return restored


def _interrupt(world: World, number: int, moment: str, work: Callable[[], object]) -> None:
    """Press Ctrl-C before or after the effect of call ``number`` of ``work``."""
    start = len(world.cloud.calls)

    def interrupt(operation: str) -> None:
        if len(world.cloud.calls) - start == number + 1:
            raise KeyboardInterrupt

    setattr(world.cloud, moment, interrupt)
    with pytest.raises(KeyboardInterrupt):
        work()
    setattr(world.cloud, moment, lambda operation: None)


def _moments(world: World, work: Callable[[], object]) -> list[int]:
    """The calls of ``work`` that change something, and the first reading call after each: between
    two readings nothing differs."""
    before = len(world.cloud.calls)
    work()
    calls = ["", *world.cloud.calls[before:]]
    changes = [not call.startswith(READING) for call in calls]
    return [i - 1 for i in range(1, len(calls)) if changes[i] or changes[i - 1]]


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
    start = _snapshot(world)
    moments = _moments(world, lambda: world.deploy(a_plan(head)))
    assert len(moments) > 10

    for number in moments:
        world = start()
        _interrupt(world, number, moment, lambda: world.deploy(a_plan(head)))  # noqa: B023
        where = f"after Ctrl-C {moment} call {number}, {world.cloud.calls[-1]}"
        interrupted = _snapshot(world)
        _assert_removable(world, where)

        world = interrupted()
        world.deploy(a_plan(head))
        assert world.state() == "InService", where
        assert len(world.cloud.models) == len(world.cloud.configs) == 1, where
        _assert_removable(world, where)


@pytest.mark.usefixtures("plain_writes")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_destroy_completes_after_ctrl_c_at_any_call_of_destroy(head: Path, moment: str) -> None:
    world = World()
    world.deploy(a_plan(head))
    start = _snapshot(world)

    for number in _moments(world, world.destroy):
        world = start()
        _interrupt(world, number, moment, world.destroy)
        assert world.record() is not None or world.cloud.is_empty
        _assert_removable(world, f"after Ctrl-C {moment} call {number}")
