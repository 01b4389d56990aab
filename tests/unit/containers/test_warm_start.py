"""Warm starts through the entrypoint as a process: what its log says, and what the engine gets."""

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

from peagle.protocol import warm_start_in
from peagle_serve.warm.cache_key import key_of
from tests.unit.containers.artifacts import (
    CACHES,
    archive_of,
    artifact,
    held,
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


def test_a_matching_artifact_is_restored_and_the_engine_led_to_it(world: World) -> None:
    manifest = world.collected()

    told, given = world.start()

    (line,) = [line for line in told if "warm start" in line["message"]]
    assert line["message"].startswith(f"warm start: restored {len(CACHES)} files, 0.0 MB in 0.")
    assert f"key {manifest.key}; a cold start takes 101 s" in line["message"]
    assert line["stage"] == "starting"
    found = warm_start_in([json.dumps(line) for line in told])
    assert found is not None
    assert found.key == manifest.key
    assert line["message"].endswith(found.detail)
    place = world.cache / manifest.key
    assert given["VLLM_CACHE_ROOT"] == str(place / "vllm")
    assert given["TORCHINDUCTOR_CACHE_DIR"] == str(place / "inductor")
    assert given["VLLM_USE_AOT_COMPILE"] == "0"
    assert {name: held(place)[name] for name in CACHES} == CACHES
    assert "PEAGLE_WARM_SUBJECT" not in given


def test_collected_in_an_image_named_by_tag_and_found_under_its_digest(world: World) -> None:
    inside = {"PEAGLE_IMAGE_CONTENT": "sha256:inside"}
    manifest = world.collected(**inside)

    told, _ = world.start(**inside, PEAGLE_IMAGE_DIGEST="sha256:1", SM_VLLM_TOOL_CALL_PARSER="x")

    assert warnings(told) == []
    (start,) = [line for line in told if line["event"] == "warm-start"]
    assert (start["restored"], start["key"]) == (True, manifest.key)


def test_what_was_restored_serves_the_next_start_too(world: World) -> None:
    world.collected()
    world.start()

    told, given = world.start()

    assert any("were restored before" in line["message"] for line in told)
    assert not is_cold(given)


def test_variables_that_the_user_has_set_stay(world: World) -> None:
    world.collected()

    _, given = world.start(TRITON_CACHE_DIR="/mine", PEAGLE_CACHE=str(world.folder / "cache"))

    assert given["TRITON_CACHE_DIR"] == "/mine"
    assert given["VLLM_CACHE_ROOT"].startswith(str(world.folder / "cache" / "warm"))


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

    said = [process.communicate(timeout=30)[1].decode() for process in begun]

    assert all("200 files" in log for log in said), said
    assert [path.name for path in world.cache.iterdir()] == [manifest.key]
    assert len(held(world.cache / manifest.key)) == 201
    for number in range(2):
        given = json.loads((world.folder / f"record-{number}").read_text())["environment"]
        assert given["TRITON_CACHE_DIR"] == str(world.cache / manifest.key / "triton")


def test_without_artifacts_nothing_is_said_and_nothing_is_done(world: World) -> None:
    told, given = world.start()

    assert not any("warm" in line["message"] for line in told)
    assert is_cold(given)
    assert not world.cache.exists()


def test_an_empty_folder_of_artifacts_is_spoken_of(world: World) -> None:
    world.artifacts.mkdir()

    told, given = world.start()

    assert f"no warm start: {world.artifacts} holds no artifact" in told[0]["message"]
    assert is_cold(given)


def test_the_folder_of_artifacts_can_be_elsewhere(world: World) -> None:
    manifest = world.collected()
    elsewhere = world.artifacts.rename(world.folder / "ml" / "elsewhere")

    _, given = world.start(PEAGLE_WARM_FOLDER="/opt/ml/elsewhere")

    assert elsewhere.is_dir()
    assert manifest.key in given["VLLM_CACHE_ROOT"]


def test_off_is_off(world: World) -> None:
    world.collected()

    told, given = world.start(PEAGLE_WARM="off")

    assert not any("warm" in line["message"] for line in told)
    assert is_cold(given)


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
def test_an_artifact_of_another_container_is_ignored_and_the_difference_named(
    world: World, more: dict[str, str], named: str
) -> None:
    world.collected()

    told, given = world.start(**more)

    (said,) = warnings(told)
    assert said.startswith("no warm start, the engine compiles everything: no artifact in ")
    assert said.endswith(f"differs in {named}")
    (start,) = [line for line in told if line["event"] == "warm-start"]
    assert (start["restored"], start["differences"]) == (False, [named])
    found = warm_start_in([json.dumps(line) for line in told])
    assert found is not None
    assert found.document()["differences"] == [named]
    assert is_cold(given)


def test_of_several_artifacts_the_nearest_is_named(world: World) -> None:
    here = world.collected().subject
    near = artifact(world.artifacts, {**here, "software": "other"})
    for number in range(5):
        far = {"software": "other", "image": f"sha256:{number}", "engine": {}}
        artifact(world.artifacts, {**here, **far})
    for end in ("json", "tar.gz"):
        (world.artifacts / f"{key_of(here)}.{end}").unlink()

    told, _ = world.start()

    assert f"{near.key} differs in the software" in warnings(told)[0]


def test_an_artifact_of_another_pair_is_ignored(world: World) -> None:
    world.collected()
    target = world.model / "target" / "config.json"
    target.write_text(json.dumps({**TARGET, "rope_theta": 1}))

    told, given = world.start()

    (said,) = warnings(told)
    assert said.endswith("differs in the target")
    assert is_cold(given)


def test_an_artifact_of_other_software_is_ignored(world: World) -> None:
    world.collected()
    (world.folder / "engine" / "triton-3.7.1.dist-info").mkdir()

    told, _ = world.start()

    assert warnings(told)[0].endswith("differs in the software")


@pytest.mark.parametrize("spoil", ["cut", "manifest", "no archive", "link", "pipe", "number"])
def test_a_damaged_artifact_is_a_warning_and_a_cold_start(world: World, spoil: str) -> None:
    manifest = world.collected()
    archive = world.artifacts / f"{manifest.key}.tar.gz"
    if spoil == "cut":
        archive.write_bytes(archive.read_bytes()[:-100])
    elif spoil == "manifest":
        (world.artifacts / f"{manifest.key}.json").write_text("{")
    elif spoil == "no archive":
        archive.unlink()
    elif spoil == "pipe":
        archive.unlink()
        os.mkfifo(archive)
    elif spoil == "number":
        write(world.artifacts, manifest, seconds_cold=10**400)
    else:
        with_archive(world.artifacts, manifest, archive_of([member("../../../out")]))

    told, given = world.start()

    (said,) = warnings(told)
    assert said.startswith("no warm start, the engine compiles everything: ")
    assert is_cold(given)
    assert not world.cache.exists() or list(world.cache.iterdir()) == []
    assert not (world.folder / "out").exists()


def test_a_cache_that_cannot_be_written_is_a_warning(world: World) -> None:
    world.collected()
    (world.folder / "file").touch()

    told, given = world.start(PEAGLE_CACHE=str(world.folder / "file"))

    (said,) = warnings(told)
    assert "Not a directory (set PEAGLE_CACHE to a writable folder)" in said
    assert is_cold(given)


def test_a_folder_of_artifacts_alone_is_no_model(world: World) -> None:
    for name in ("target", "head"):
        shutil.rmtree(world.model / name)
    world.artifacts.mkdir()

    argv = world.container.argv({"HF_MODEL_ID": "a/b", "PEAGLE_ML_ROOT": str(world.folder / "ml")})

    assert argv[argv.index("--model") + 1] == "a/b"


def test_artifacts_beside_a_single_model_change_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    shutil.rmtree(world.model)
    model(world.model)
    world.artifacts.mkdir()

    argv = world.container.argv({"PEAGLE_ML_ROOT": str(tmp_path / "ml")})

    assert argv[argv.index("--model") + 1] == str(world.model)


def test_told_to_end_while_it_restores_it_ends_and_leaves_nothing(world: World) -> None:
    manifest = world.collected()
    big = archive_of([member(f"triton/{n}/k", bytes(1_000_000)) for n in range(600)])
    with_archive(world.artifacts, manifest, big, files=600, unpacked_bytes=600_000_000)
    environment = {
        **world.variables(),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(world.container.folder),
        "RECORD": str(world.container.record),
        "SAGEMAKER_BIND_TO_PORT": str(PORT),
    }
    world.container.record.unlink()
    command = [sys.executable, str(SERVE), "serve"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    until = time.monotonic() + 20
    while not list(world.cache.glob("*.partial/triton/*")):
        assert time.monotonic() < until
        time.sleep(0.01)

    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=20)[1]

    assert process.returncode == 0
    assert json.loads(said.splitlines()[-1])["stage"] == "ended"
    assert list(world.cache.iterdir()) == []
    assert not world.container.record.exists()
