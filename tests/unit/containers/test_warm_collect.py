"""A container that is told to collect compiles into empty folders, or says why it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_serve.contract import WrongEnvironment, settings_of
from peagle_serve.warm.caches import archive_of
from tests.unit.containers.artifacts import filled, held
from tests.unit.containers.recording import documents
from tests.unit.containers.warm_worlds import World, warnings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_collecting_begins_with_empty_folders_and_says_so(world: World) -> None:
    manifest = world.collected()
    archive_of(filled(world.cache / manifest.key)).write_bytes(b"of an earlier engine")

    told, given = world.start(PEAGLE_WARM="collect")

    assert [line["key"] for line in told if line["event"] == "collect"] == [manifest.key]
    assert given["PEAGLE_WARM_PLACE"] == str(world.cache / manifest.key)
    assert held(world.cache) == {}
    assert given["VLLM_CACHE_ROOT"] == str(world.cache / manifest.key / "vllm")


def test_collecting_tells_what_it_does_not_collect(world: World) -> None:
    told, given = world.start(
        PEAGLE_WARM="collect", TRITON_CACHE_DIR="/mine", VLLM_API_KEY="secret-key"
    )

    first, second = warnings(told)
    assert "TRITON_CACHE_DIR" in first
    assert "SM_VLLM_API_KEY" in second
    assert "secret-key" not in given["PEAGLE_WARM_SUBJECT"]


def test_collecting_where_nothing_can_be_written_ends_at_once(world: World) -> None:
    (world.folder / "file").touch()
    variables = world.variables(PEAGLE_WARM="collect", PEAGLE_CACHE=str(world.folder / "file"))

    done = world.container.run(variables)

    assert done.returncode == 2
    (said,) = documents(done)
    assert "is not writable: Not a directory" in said["message"]
    assert "PEAGLE_CACHE" in said["fix"]


def test_collecting_where_nobody_knows_the_gpu_ends_at_once(world: World) -> None:
    (world.folder / "engine" / "torch-2.13.0+cpu.dist-info").rmdir()

    done = world.container.run(world.variables(PEAGLE_WARM="collect"))

    assert done.returncode == 2
    assert "the device is unknown" in documents(done)[0]["message"]


def test_an_engine_that_compiles_for_others_is_not_started_again() -> None:
    assert settings_of({"PEAGLE_WARM": "collect", "PEAGLE_RESTARTS": "3"}).restarts == 0
    assert settings_of({"PEAGLE_WARM": "auto", "PEAGLE_RESTARTS": "3"}).restarts == 3
    with pytest.raises(WrongEnvironment, match="PEAGLE_WARM is 'sometimes'"):
        settings_of({"PEAGLE_WARM": "sometimes"})
