"""Warm starts with the entrypoint as a process: its log, and the engine's environment."""

import json
from pathlib import Path

import pytest

from peagle.engine_log import warm_start_in
from peagle_serve.contract import InvalidEnvironment, read_pins, read_settings
from peagle_serve.warm import cache_folder
from tests.unit.containers.artifacts import CACHES, files_in
from tests.unit.containers.warm_worlds import World, is_cold


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.thorough
def test_a_matching_artifact_is_restored_for_the_engine(world: World) -> None:
    manifest = world.collected()
    entries, variables = world.start(PEAGLE_WARM_SHA256=f"{'0' * 64},{manifest.sha256}")
    (line,) = [line for line in entries if line["event"] == "warm-start"]
    assert (line["restored"], line["key"], line["stage"]) == (True, manifest.key, "starting")
    assert line["message"].startswith(f"warm start: restored {len(CACHES)} files, 0.0 MB in 0.")
    assert "a cold start takes 101 s" in line["message"]
    read = warm_start_in([json.dumps(line) for line in entries])
    assert read is not None
    assert read.key == manifest.key
    assert line["message"].endswith(read.detail)
    place = world.cache / manifest.key
    assert variables["VLLM_CACHE_ROOT"] == str(place / "vllm")
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == str(place / "inductor")
    assert variables["VLLM_USE_AOT_COMPILE"] == "0"
    assert {name: files_in(place)[name] for name in CACHES} == CACHES
    assert "PEAGLE_WARM_SUBJECT" not in variables
    again, variables = world.start()
    assert any("were restored before" in line["message"] for line in again)
    assert not is_cold(variables)


def test_settings_of_warm_starts() -> None:
    assert read_settings({"PEAGLE_WARM": "collect", "PEAGLE_RESTARTS": "3"}).restarts == 0
    assert read_settings({"PEAGLE_WARM": "auto", "PEAGLE_RESTARTS": "3"}).restarts == 3
    pins = f" {'0' * 64}, {'1' * 64}"
    read = [read_pins({"PEAGLE_WARM_SHA256": text}) for text in ("", "any", pins)]
    assert read == [frozenset(), {"any"}, {"0" * 64, "1" * 64}]
    for text in ("yes", "any,any", "0" * 63, f"{'0' * 64},", "A" * 64):
        with pytest.raises(InvalidEnvironment, match="PEAGLE_WARM_SHA256 is"):
            read_settings({"PEAGLE_WARM_SHA256": text})
    with pytest.raises(InvalidEnvironment, match="set it to auto, collect or off"):
        read_settings({"PEAGLE_WARM": "sometimes"})


def test_the_cache_is_the_users() -> None:
    home = {"HOME": "/home/me"}
    assert cache_folder(home) == Path("/home/me/.cache/peagle/warm")
    assert cache_folder(home | {"XDG_CACHE_HOME": "/cache"}) == Path("/cache/peagle/warm")
    assert cache_folder(home | {"PEAGLE_CACHE": "/volume"}) == Path("/volume/warm")
