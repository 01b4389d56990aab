"""Ctrl-C at any call of a command on the fake account."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from peagle.deploy.records import record_path
from tests.unit.aws.world import NAME, READING, World


def snapshot(world: World) -> Callable[[], World]:
    """A function that restores the account and the record as they are now."""
    path = record_path(world.aws.scope, "us-east-1", NAME)
    record = path.read_bytes() if path.exists() else None
    cloud = copy.deepcopy(world.cloud)

    def restored() -> World:
        path.unlink(missing_ok=True)
        if record is not None:
            path.write_bytes(record)
        world = World(copy.deepcopy(cloud))
        assert world.aws.account  # asked once, and not by the command
        return world

    return restored


def interrupt(
    world: World, number: int, moment: str, work: Callable[[], object], killed: bool = False
) -> None:
    """Press Ctrl-C before or after the effect of call ``number`` of ``work``. When ``killed``,
    nothing is sent afterwards."""
    start = len(world.cloud.calls)

    def press(operation: str) -> None:
        calls = len(world.cloud.calls) - start
        if calls == number + 1 or (killed and calls > number):
            raise KeyboardInterrupt

    setattr(world.cloud, moment, press)
    with pytest.raises(KeyboardInterrupt):
        work()
    setattr(world.cloud, moment, lambda operation: None)


def moments_of(world: World, work: Callable[[], object], moment: str = "before") -> list[int]:
    """The calls of ``work`` that change something, and the first reading call after each: between
    two readings nothing differs. After a reading call all is as before it, so for that moment it
    is left out."""
    before = len(world.cloud.calls)
    work()
    calls = ["", *world.cloud.calls[before:]]
    changes = [not call.startswith(READING) for call in calls]
    with_readings = moment == "before"
    return [i - 1 for i in range(1, len(calls)) if changes[i] or (with_readings and changes[i - 1])]
