"""Warm starts with the entrypoint as a process: its log, and the engine's environment."""

import json
import os
from pathlib import Path

import pytest

from peagle.engine_log import warm_start_in
from peagle_serve.contract import InvalidEnvironment, read_pins, read_settings
from peagle_serve.warm import (
    FOLDERS,
    cache_folder,
    cache_variables,
    locate_archive,
    make_cache_folder,
)
from tests.unit.containers import artifacts as made
from tests.unit.containers.artifacts import CACHES, files_in, filled, member, with_archive
from tests.unit.containers.recording import documents
from tests.unit.containers.warm_worlds import World, is_cold, warnings
from tests.unit.containers.weights import TARGET

PLANTED = made.locate_archive([member("triton/k/k.so", b"planted code")])


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


@pytest.mark.thorough
@pytest.mark.parametrize(("more", "named"), [
    ({"SM_VLLM_MAX_NUM_SEQS": "8"}, "engine"),
    ({"PEAGLE_IMAGE_DIGEST": "sha256:other"}, "image"),
    ({"target": "other"}, "pair"),
    ({"software": "other"}, "software"),
])  # fmt: skip
def test_an_artifact_of_another_container_is_ignored_with_the_difference(
    world: World, more: dict[str, str], named: str
) -> None:
    world.collected()
    if "target" in more:
        config = world.model / "target" / "config.json"
        config.write_text(json.dumps({**TARGET, "rope_theta": 1}))
    if "software" in more:
        (world.folder / "engine" / "triton-3.7.1.dist-info").mkdir()
    entries, variables = world.start(**more)
    (reported,) = warnings(entries)
    assert reported.startswith("no warm start, the engine compiles everything: no artifact in ")
    assert reported.endswith(f"has another {named}")
    (line,) = [line for line in entries if line["event"] == "warm-start"]
    assert (line["restored"], line["differences"]) == (False, [named])
    read = warm_start_in([json.dumps(line) for line in entries])
    assert read is not None
    assert read.differences == (named,)
    assert is_cold(variables)


TROUBLE: dict[str, tuple[dict[str, str], str]] = {
    "no archive": ({}, "No such file"),
    "pipe": ({}, "Not a regular file (copy the artifact again"),
    "no pin": ({"PEAGLE_WARM_SHA256": ""}, "PEAGLE_WARM_SHA256 does not say which"),
    # Who may write the bucket writes a manifest that matches the archive.
    "replaced": ({"PEAGLE_WARM_SHA256": "collected"}, "PEAGLE_WARM_SHA256 does not list"),
    "lies": ({"PEAGLE_WARM_SHA256": "collected"}, "does not match the sha256"),
    "no folder": ({"PEAGLE_WARM_FOLDER": "/opt/ml/gone"}, "does not exist"),
    "cache is a file": ({"PEAGLE_CACHE": "FILE"}, "Not a directory"),
    "cache of others": ({}, "other users may write there ("),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("trouble", TROUBLE)
def test_any_trouble_is_one_warning_and_a_cold_start(world: World, trouble: str) -> None:
    manifest = world.collected()
    archive = world.artifacts / f"{manifest.key}.tar.gz"
    (world.folder / "file").touch()
    if trouble in ("no archive", "pipe"):
        archive.unlink()
        if trouble == "pipe":
            os.mkfifo(archive)
    elif trouble == "replaced":
        with_archive(world.artifacts, manifest, PLANTED, files=1, unpacked_bytes=12)
    elif trouble == "lies":
        archive.write_bytes(PLANTED)
    elif trouble == "cache of others":
        world.cache.mkdir(parents=True)
        world.cache.chmod(0o777)
    values = {"collected": manifest.sha256, "FILE": str(world.folder / "file")}
    more, words = TROUBLE[trouble]
    entries, variables = world.start(**{name: values.get(v, v) for name, v in more.items()})
    (reported,) = warnings(entries)
    assert reported.startswith("no warm start, the engine compiles everything: ")
    assert words in reported
    assert is_cold(variables)
    assert not world.cache.exists() or list(world.cache.iterdir()) == []
    assert not (world.folder / "out").exists()


@pytest.mark.thorough
def test_collecting_starts_with_empty_folders_and_warns_of_an_api_key(world: World) -> None:
    manifest = world.collected()
    locate_archive(filled(world.cache / manifest.key)).write_bytes(b"of an earlier engine")
    entries, variables = world.start(PEAGLE_WARM="collect")
    assert [line["key"] for line in entries if line["event"] == "collect"] == [manifest.key]
    assert variables["PEAGLE_WARM_PLACE"] == str(world.cache / manifest.key)
    assert files_in(world.cache) == {}
    assert variables["VLLM_CACHE_ROOT"] == str(world.cache / manifest.key / "vllm")
    entries, variables = world.start(PEAGLE_WARM="collect", VLLM_API_KEY="secret-key")
    (reported,) = warnings(entries)
    assert "the same key" in reported
    assert "secret-key" not in variables["PEAGLE_WARM_SUBJECT"]


@pytest.mark.thorough
@pytest.mark.parametrize("why", ["is not writable: Not a directory", "the device is unknown"])
def test_what_cannot_be_collected_is_refused(world: World, why: str) -> None:
    more = {}
    if "device" in why:
        (world.folder / "engine" / "torch-2.13.0+cpu.dist-info").rmdir()
    else:
        (world.folder / "file").touch()
        more = {"PEAGLE_CACHE": str(world.folder / "file")}
    done = world.container.run(world.variables(PEAGLE_WARM="collect", **more))
    assert done.returncode == 2
    (reported,) = documents(done)
    assert why in reported["message"]


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


def test_the_variables_of_caches_leave_those_of_the_user() -> None:
    user = {"TRITON_CACHE_DIR": "/mine", "CUDA_CACHE_PATH": ""}
    variables = cache_variables(Path("/cache/key"), user, for_cpu=False)
    assert variables["VLLM_CACHE_ROOT"] == "/cache/key/vllm"
    assert set(FOLDERS) - set(variables) == {"TRITON_CACHE_DIR"}
    on_cpu = cache_variables(Path("/c"), {}, for_cpu=True)
    assert {name: on_cpu[name] for name in on_cpu.keys() - variables} == {
        "VLLM_USE_AOT_COMPILE": "0",
        "TRITON_CACHE_DIR": "/c/triton",
    }


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
