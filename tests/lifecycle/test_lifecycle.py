"""A small sample of ``make lifecycle``, and every walk that once violated an invariant."""

from collections.abc import Iterator

import pytest

from tests.lifecycle.__main__ import FOUND
from tests.lifecycle.steps import Walk, random_walk
from tests.lifecycle.walk import run
from tests.lifecycle.world import World
from tests.sandbox.clients import shared_clients
from tests.sandbox.sandboxes import Sandbox, fake_engine, started

SAMPLE = (3,)
"""A walk with a lost connection, Ctrl-C, a rollback; those that were
once found broken have the kills."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    place = tmp_path_factory.mktemp("lifecycle")
    sandbox = Sandbox(place / "home", fake_engine(place / "engine"))
    with shared_clients(), started(sandbox):
        yield World(sandbox)


@pytest.mark.sandbox
@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", SAMPLE)
def test_a_random_walk_keeps_every_invariant(world: World, seed: int) -> None:
    run(world, random_walk(seed))


@pytest.mark.exhaustive
@pytest.mark.sandbox
def test_what_was_found_broken_holds(world: World) -> None:
    for file in sorted(FOUND.glob("*.json")):
        run(world, Walk.read(file.read_text()))
