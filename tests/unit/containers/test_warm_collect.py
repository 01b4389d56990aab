"""A collecting container compiles into empty folders, or refuses to start."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle_serve.contract import InvalidEnvironment, settings_of
from peagle_serve.warm.caches import archive_of
from tests.unit.containers.artifacts import files_in, filled
from tests.unit.containers.recording import documents
from tests.unit.containers.warm_worlds import World, warnings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.thorough
def test_collecting_starts_with_empty_folders(world: World) -> None:
    manifest = world.collected()
    archive_of(filled(world.cache / manifest.key)).write_bytes(b"of an earlier engine")

    entries, given = world.start(PEAGLE_WARM="collect")

    assert [line["key"] for line in entries if line["event"] == "collect"] == [manifest.key]
    assert given["PEAGLE_WARM_PLACE"] == str(world.cache / manifest.key)
    assert files_in(world.cache) == {}
    assert given["VLLM_CACHE_ROOT"] == str(world.cache / manifest.key / "vllm")


@pytest.mark.thorough
def test_collecting_warns_about_what_is_not_collected(world: World) -> None:
    entries, given = world.start(
        PEAGLE_WARM="collect", TRITON_CACHE_DIR="/mine", VLLM_API_KEY="secret-key"
    )

    first, second = warnings(entries)
    assert "TRITON_CACHE_DIR" in first
    assert "the same key" in second
    assert "secret-key" not in given["PEAGLE_WARM_SUBJECT"]


@pytest.mark.thorough
def test_collecting_into_an_unwritable_folder_is_refused(world: World) -> None:
    (world.folder / "file").touch()
    variables = world.variables(PEAGLE_WARM="collect", PEAGLE_CACHE=str(world.folder / "file"))

    done = world.container.run(variables)

    assert done.returncode == 2
    (reported,) = documents(done)
    assert "is not writable: Not a directory" in reported["message"]
    assert "PEAGLE_CACHE" in reported["fix"]


@pytest.mark.thorough
def test_collecting_on_an_unknown_device_is_refused(world: World) -> None:
    (world.folder / "engine" / "torch-2.13.0+cpu.dist-info").rmdir()

    done = world.container.run(world.variables(PEAGLE_WARM="collect"))

    assert done.returncode == 2
    assert "the device is unknown" in documents(done)[0]["message"]


def test_a_collecting_engine_is_not_restarted() -> None:
    assert settings_of({"PEAGLE_WARM": "collect", "PEAGLE_RESTARTS": "3"}).restarts == 0
    assert settings_of({"PEAGLE_WARM": "auto", "PEAGLE_RESTARTS": "3"}).restarts == 3
    with pytest.raises(InvalidEnvironment) as refused:
        settings_of({"PEAGLE_WARM": "sometimes"})
    assert refused.value.message == "PEAGLE_WARM is 'sometimes'"
    assert refused.value.fix == "set it to auto, collect or off"
