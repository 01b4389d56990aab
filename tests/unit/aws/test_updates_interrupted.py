"""An update, its rollback, or the removal of the previous revision, killed at any call: nothing is
forgotten, and the same command, a rollback and a destroy each finish."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from peagle.errors import NotProved, Refused
from tests.unit.aws.interruptions import interrupt, moments_of, snapshot
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import NAME, World

pytestmark = pytest.mark.thorough

Work = Callable[[World], object]


class Case:
    """A command, how the account is prepared for it, and what serves when it has ended."""

    def __init__(self, prepare: Work, work: Work, configs: int) -> None:
        self.prepare, self.work, self.configs = prepare, work, configs


def _updated(folder: Path) -> Work:
    def prepare(world: World) -> None:
        world.deploy(a_plan(folder))
        (folder / "model.safetensors").write_bytes(b"trained again")
        world.deploy(another(a_plan(folder)))

    return prepare


def _unproved(world: World, folder: Path) -> None:
    """Deploy an update whose proof fails."""

    def worse(operation: str) -> None:
        served = [one.config for one in world.cloud.endpoints.values()]
        models = [model for name, model in world.cloud.models.items() if name in served]
        bad = any("SM_VLLM_K" in str(model) for model in models)
        world.cloud.engine.acceptance = 1.4 if bad else 3.0

    inner = world.cloud.before

    def hook(operation: str) -> None:
        worse(operation)
        inner(operation)

    world.cloud.before = hook
    try:
        with suppress(NotProved):
            world.deploy(another(a_plan(folder)))
    finally:
        world.cloud.before = inner
        world.cloud.engine.acceptance = 3.0


@pytest.fixture(params=["fails", "rollback", "previous"])
def case(request: pytest.FixtureRequest, head: Path) -> Case:
    def first(world: World) -> None:
        world.deploy(a_plan(head))

    return {
        "fails": Case(first, lambda w: _unproved(w, head), 1),
        "rollback": Case(_updated(head), lambda w: w.rollback(), 2),
        "previous": Case(_updated(head), lambda w: w.remove_previous(), 1),
    }[request.param]


@pytest.mark.exhaustive
@pytest.mark.usefixtures("plain_writes")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_update_is_continued_rolled_back_or_removed(case: Case, moment: str) -> None:
    world = World()
    case.prepare(world)
    start = snapshot(world)
    prepared = world.cloud.endpoints[NAME].config
    moments = moments_of(world, lambda: case.work(world), moment)
    ended = world.cloud.endpoints[NAME].config
    assert len(moments) > (3 if moment == "before" else 2)
    assert len(world.cloud.configs) == case.configs

    for number in moments:
        world = start()
        interrupt(world, number, moment, lambda: case.work(world), killed=True)  # noqa: B023
        where = f"killed {moment} call {number}, {world.cloud.calls[-1]}"
        killed = snapshot(world)
        world.destroy()
        assert world.cloud.is_empty, where

        world = killed()
        case.work(world)
        _assert_serves(world, ended, where)
        assert len(world.cloud.configs) == case.configs, where
        assert len(world.cloud.models) == case.configs, where

        world = killed()
        with suppress(Refused):  # the command had not begun, or had removed the previous revision
            world.rollback()
        serving = world.cloud.endpoints[NAME].config
        _assert_serves(world, serving, where)
        assert serving in (prepared, ended) or len(world.cloud.configs) == 2, where
        world.destroy()
        assert world.cloud.is_empty, where


def _assert_serves(world: World, config: str, where: str) -> None:
    assert set(world.cloud.endpoints) == {NAME}, where
    assert world.cloud.endpoints[NAME].config == config, where
    assert world.state() == "InService", where
    record = world.record()
    assert record is not None
    assert record.pending is None, where
