"""Warm starts with the entrypoint as a process: its log, and the engine's environment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peagle.engine_log import warm_start_in
from peagle_serve.warm.cache_key import key_of
from tests.unit.containers.artifacts import (
    CACHES,
    archive_of,
    artifact,
    files_in,
    member,
    with_archive,
    write,
)
from tests.unit.containers.recording import PORT, SERVE
from tests.unit.containers.warm_worlds import World, is_cold, warnings
from tests.unit.containers.weights import TARGET, model


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.thorough
def test_a_matching_artifact_is_restored_for_the_engine(world: World) -> None:
    manifest = world.collected()

    entries, given = world.start()

    (line,) = [line for line in entries if "warm start" in line["message"]]
    assert line["message"].startswith(f"warm start: restored {len(CACHES)} files, 0.0 MB in 0.")
    assert f"key {manifest.key}; a cold start takes 101 s" in line["message"]
    assert line["stage"] == "starting"
    found = warm_start_in([json.dumps(line) for line in entries])
    assert found is not None
    assert found.key == manifest.key
    assert line["message"].endswith(found.detail)
    place = world.cache / manifest.key
    assert given["VLLM_CACHE_ROOT"] == str(place / "vllm")
    assert given["TORCHINDUCTOR_CACHE_DIR"] == str(place / "inductor")
    assert given["VLLM_USE_AOT_COMPILE"] == "0"
    assert {name: files_in(place)[name] for name in CACHES} == CACHES
    assert "PEAGLE_WARM_SUBJECT" not in given


@pytest.mark.thorough
def test_an_artifact_collected_under_a_tag_matches_the_digest(world: World) -> None:
    inside = {"PEAGLE_IMAGE_CONTENT": "sha256:inside"}
    manifest = world.collected(**inside)

    entries, _ = world.start(**inside, PEAGLE_IMAGE_DIGEST="sha256:1", SM_VLLM_TOOL_CALL_PARSER="x")

    assert warnings(entries) == []
    (start,) = [line for line in entries if line["event"] == "warm-start"]
    assert (start["restored"], start["key"]) == (True, manifest.key)


@pytest.mark.thorough
def test_a_restored_cache_is_reused(world: World) -> None:
    world.collected()
    world.start()

    entries, given = world.start()

    assert any("were restored before" in line["message"] for line in entries)
    assert not is_cold(given)


@pytest.mark.thorough
def test_variables_set_by_the_user_are_kept(world: World) -> None:
    world.collected()

    _, given = world.start(TRITON_CACHE_DIR="/mine", PEAGLE_CACHE=str(world.folder / "cache"))

    assert given["TRITON_CACHE_DIR"] == "/mine"
    assert given["VLLM_CACHE_ROOT"].startswith(str(world.folder / "cache" / "warm"))


@pytest.mark.thorough
def test_two_containers_may_share_a_cache_and_start_at_once(world: World) -> None:
    manifest = world.collected()
    big = archive_of([member(f"triton/{n}/k", bytes(100_000)) for n in range(200)])
    with_archive(world.artifacts, manifest, big, files=200, unpacked_bytes=20_000_000)
    begun = []
    for number, engine in enumerate((world.container, World(world.folder / "other").container)):
        shutil.copytree(engine.folder, world.folder / f"engine-{number}")
        environment = {
            **world.variables(),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(engine.folder),
            "RECORD": str(world.folder / f"record-{number}"),
            "SAGEMAKER_BIND_TO_PORT": str(PORT),
        }
        command = [sys.executable, str(SERVE), "serve"]
        begun.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE))

    reported = [process.communicate(timeout=30)[1].decode() for process in begun]

    assert all("200 files" in log for log in reported), reported
    assert [path.name for path in world.cache.iterdir()] == [manifest.key]
    assert len(files_in(world.cache / manifest.key)) == 201
    for number in range(2):
        given = json.loads((world.folder / f"record-{number}").read_text())["environment"]
        assert given["TRITON_CACHE_DIR"] == str(world.cache / manifest.key / "triton")


@pytest.mark.thorough
def test_without_artifacts_the_engine_starts_cold(world: World) -> None:
    entries, given = world.start()

    assert not any("warm" in line["message"] for line in entries)
    assert is_cold(given)
    assert not world.cache.exists()


@pytest.mark.thorough
def test_an_empty_artifact_folder_is_reported(world: World) -> None:
    world.artifacts.mkdir()

    entries, given = world.start()

    assert f"no warm start: {world.artifacts} holds no artifact" in entries[0]["message"]
    assert is_cold(given)


@pytest.mark.thorough
def test_the_artifact_folder_can_be_set(world: World) -> None:
    manifest = world.collected()
    elsewhere = world.artifacts.rename(world.folder / "ml" / "elsewhere")

    _, given = world.start(PEAGLE_WARM_FOLDER="/opt/ml/elsewhere")

    assert elsewhere.is_dir()
    assert manifest.key in given["VLLM_CACHE_ROOT"]


@pytest.mark.thorough
def test_mode_off_neither_restores_nor_collects(world: World) -> None:
    world.collected()

    entries, given = world.start(PEAGLE_WARM="off")

    assert not any("warm" in line["message"] for line in entries)
    assert is_cold(given)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"SM_VLLM_MAX_NUM_SEQS": "8"}, "the engine's arguments (SM_VLLM_MAX_NUM_SEQS)"),
        ({"SM_VLLM_DTYPE": "float32"}, "the engine's arguments (SM_VLLM_DTYPE)"),
        (
            {"PEAGLE_IMAGE_DIGEST": "sha256:other"},
            "the image (the artifact's digest is unknown: name images as NAME@sha256:...)",
        ),
    ],
)
def test_an_artifact_of_another_container_is_ignored_with_the_difference(
    world: World, more: dict[str, str], named: str
) -> None:
    world.collected()

    entries, given = world.start(**more)

    (reported,) = warnings(entries)
    assert reported.startswith("no warm start, the engine compiles everything: no artifact in ")
    assert reported.endswith(f"differs in {named}")
    (start,) = [line for line in entries if line["event"] == "warm-start"]
    assert (start["restored"], start["differences"]) == (False, [named])
    found = warm_start_in([json.dumps(line) for line in entries])
    assert found is not None
    assert found.document()["differences"] == [named]
    assert is_cold(given)


@pytest.mark.thorough
def test_the_most_similar_artifact_is_named(world: World) -> None:
    here = world.collected().subject
    near = artifact(world.artifacts, {**here, "software": "other"})
    for number in range(5):
        far = {"software": "other", "image": f"sha256:{number}", "engine": {}}
        artifact(world.artifacts, {**here, **far})
    for end in ("json", "tar.gz"):
        (world.artifacts / f"{key_of(here)}.{end}").unlink()

    entries, _ = world.start()

    assert f"{near.key} differs in the software" in warnings(entries)[0]


@pytest.mark.thorough
def test_an_artifact_of_another_pair_is_ignored(world: World) -> None:
    world.collected()
    target = world.model / "target" / "config.json"
    target.write_text(json.dumps({**TARGET, "rope_theta": 1}))

    entries, given = world.start()

    (reported,) = warnings(entries)
    assert reported.endswith("differs in the target")
    assert is_cold(given)


@pytest.mark.thorough
def test_an_artifact_of_other_software_is_ignored(world: World) -> None:
    world.collected()
    (world.folder / "engine" / "triton-3.7.1.dist-info").mkdir()

    entries, _ = world.start()

    assert warnings(entries)[0].endswith("differs in the software")


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["cut", "manifest", "no archive", "link", "pipe", "number"])
def test_a_damaged_artifact_is_a_warning_and_a_cold_start(world: World, damage: str) -> None:
    manifest = world.collected()
    archive = world.artifacts / f"{manifest.key}.tar.gz"
    if damage == "cut":
        archive.write_bytes(archive.read_bytes()[:-100])
    elif damage == "manifest":
        (world.artifacts / f"{manifest.key}.json").write_text("{")
    elif damage == "no archive":
        archive.unlink()
    elif damage == "pipe":
        archive.unlink()
        os.mkfifo(archive)
    elif damage == "number":
        write(world.artifacts, manifest, seconds_cold=10**400)
    else:
        with_archive(world.artifacts, manifest, archive_of([member("../../../out")]))

    entries, given = world.start()

    (reported,) = warnings(entries)
    assert reported.startswith("no warm start, the engine compiles everything: ")
    assert is_cold(given)
    assert not world.cache.exists() or list(world.cache.iterdir()) == []
    assert not (world.folder / "out").exists()


@pytest.mark.thorough
def test_an_unwritable_cache_is_a_warning(world: World) -> None:
    world.collected()
    (world.folder / "file").touch()

    entries, given = world.start(PEAGLE_CACHE=str(world.folder / "file"))

    (reported,) = warnings(entries)
    assert "Not a directory (set PEAGLE_CACHE to a writable folder of this user)" in reported
    assert is_cold(given)


@pytest.mark.thorough
def test_an_artifact_folder_alone_is_not_a_model(world: World) -> None:
    for name in ("target", "head"):
        shutil.rmtree(world.model / name)
    world.artifacts.mkdir()

    argv = world.container.argv({"HF_MODEL_ID": "a/b", "PEAGLE_ML_ROOT": str(world.folder / "ml")})

    assert argv[argv.index("--model") + 1] == "a/b"


@pytest.mark.thorough
def test_artifacts_beside_a_single_model_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    shutil.rmtree(world.model)
    model(world.model)
    world.artifacts.mkdir()

    argv = world.container.argv({"PEAGLE_ML_ROOT": str(tmp_path / "ml")})

    assert argv[argv.index("--model") + 1] == str(world.model)


@pytest.mark.thorough
def test_a_signal_while_restoring_leaves_nothing(world: World) -> None:
    manifest = world.collected()
    big = archive_of([member(f"triton/{n}/k", bytes(1_000_000)) for n in range(150)])
    with_archive(world.artifacts, manifest, big, files=150, unpacked_bytes=150_000_000)
    environment = {
        **world.variables(),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(world.container.folder),
        "RECORD": str(world.container.record),
        "SAGEMAKER_BIND_TO_PORT": str(PORT),
    }
    world.container.record.unlink(missing_ok=True)
    command = [sys.executable, str(SERVE), "serve"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 20
    while not list(world.cache.glob("*.partial/triton/*")):
        assert time.monotonic() < until
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)
    reported = process.communicate(timeout=20)[1]

    assert process.returncode == 0
    assert json.loads(reported.splitlines()[-1])["stage"] == "ended"
    assert list(world.cache.iterdir()) == []
    assert not world.container.record.exists()
