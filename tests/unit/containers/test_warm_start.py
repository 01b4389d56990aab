"""Warm starts with the entrypoint as a process: its log, and the engine's environment."""

import json
import os
from pathlib import Path

import pytest

from peagle.engine_log import warm_start_in
from peagle_serve.contract import InvalidEnvironment, read_pins, read_settings
from peagle_serve.warm import cache_folder, make_cache_folder
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


def test_the_cache_is_a_private_folder(tmp_path: Path) -> None:
    folder = make_cache_folder({"TMPDIR": str(tmp_path)})
    assert folder == tmp_path / f"peagle-{os.geteuid()}" / "warm"
    assert {path.stat().st_mode & 0o777 for path in (folder, folder.parent)} == {0o700}
    assert str(cache_folder({})) == f"/tmp/peagle-{os.geteuid()}/warm"
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume").chmod(0o777)  # the user's to protect
    named = make_cache_folder({"PEAGLE_CACHE": str(tmp_path / "volume")})
    assert named.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("planted", ["writable", "link", "inner", "owner"])
def test_a_cache_that_others_can_write_is_not_used(tmp_path: Path, planted: str) -> None:
    place = tmp_path / f"peagle-{os.geteuid()}"
    if planted == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o777)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir(mode=0o700)
        if planted == "inner":
            (place / "warm").mkdir()
            (place / "warm").chmod(0o777)
        elif planted == "owner" and os.geteuid() == 0:
            os.chown(place, 65534, 65534)
        else:
            place.chmod(0o777)
    with pytest.raises(PermissionError, match="other users may write there"):
        make_cache_folder({"TMPDIR": str(tmp_path)})
