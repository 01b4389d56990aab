"""The container of an endpoint in a sandbox whose engines are containers, and baked weights."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import pytest

from peagle.engine.process import EngineProcess, is_alive
from peagle.errors import NotFound
from peagle.render.image import serve_digest
from peagle.sandbox import state
from peagle.sandbox.launch import launch, mount_tiny, only_in_image
from peagle.sandbox.launch_spec import TARGET_PATH, LaunchSpec
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]

OF_AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0"
OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:1"


def spec(image: str, pair: str = "", **environment: str) -> LaunchSpec:
    return LaunchSpec("us-east-1", "e", "AllTraffic", environment, (), 60, image=image, pair=pair)


@pytest.fixture
def with_docker(own_home: Path, docker: FakeDocker) -> FakeDocker:
    """A sandbox that runs engines in containers."""
    with state.lock():
        state.write_engine_kind("docker")
    docker.answers("run", out="from the engine")
    docker.answers("rm")
    return docker


def started(docker: FakeDocker, spec: LaunchSpec, folder: Path) -> dict[str, Any]:
    """Launch the engine, and return its call of ``docker run``."""
    recorded: list[EngineProcess] = []
    launch(spec, "i-1", spec.environment, folder / "ml", folder / "log", recorded.append)
    (process,) = recorded
    end = time.monotonic() + 30
    while is_alive(process):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert process.container is not None
    assert "from the engine" in (folder / "log").read_text()
    (call,) = [one for one in docker.calls if one["argv"][0] == "run"]
    assert call["argv"][call["argv"].index("--name") + 1] == process.container
    return call


def mounts(call: dict[str, Any]) -> dict[str, Path]:
    """Path in the container -> folder that is mounted there."""
    binds = [word for word in call["argv"] if word.startswith("type=bind")]
    rows = [dict(field.split("=") for field in row[:-1]) for row in csv.reader(binds)]
    return {row["dst"]: Path(row["src"]) for row in rows}


@pytest.mark.thorough
def test_the_models_own_image_is_run_with_the_weights_that_were_downloaded(
    with_docker: FakeDocker, tmp_path: Path
) -> None:
    with_docker.has_image(OWN)
    (tmp_path / "ml" / "model").mkdir(parents=True)

    call = started(with_docker, spec(OWN, SM_VLLM_K="5"), tmp_path)

    assert call["argv"][-2:] == [f"sha256:{OWN}", "serve"]
    assert call["environment"]["SM_VLLM_K"] == "5"
    assert call["environment"]["PEAGLE_IMAGE_DIGEST"] == f"sha256:{OWN}"
    assert mounts(call) == {"/opt/ml/model": tmp_path / "ml" / "model"}


@pytest.mark.thorough
def test_for_an_image_of_aws_the_newest_one_of_the_pair_is_run(
    with_docker: FakeDocker, tmp_path: Path
) -> None:
    lines = [json.dumps({"Repository": name, "Tag": "1"}) for name in ("other", "same", "older")]
    with_docker.answers(
        "ls", f"label=peagle.serve={serve_digest()}", "label=peagle.runtime=cpu",
        "label=peagle.weights=mounted", "label=peagle.vllm=0.28.0", out="\n".join(lines),
    )  # fmt: skip
    for name, pair, day in (("other", "a/target+a/head", 22), ("same", "peagle/tiny+p-eagle", 21),
                            ("older", "peagle/tiny+p-eagle", 20)):  # fmt: skip
        labels = {**LABELS, "peagle.pair": pair}
        with_docker.has_image(f"{name}:1", labels, Created=f"2026-11-{day}T00:00:00Z")
    mount_tiny(tmp_path / "ml", None)

    call = started(with_docker, spec(OF_AWS, "peagle/tiny+p-eagle"), tmp_path)

    assert call["argv"][-2:] == ["sha256:same:1", "serve"]
    ((path, folder),) = mounts(call).items()
    assert path == TARGET_PATH
    assert folder == folder.resolve() == (tmp_path / "ml/model/target").resolve()


@pytest.mark.thorough
def test_without_any_cpu_image_the_command_that_builds_one_is_named(
    with_docker: FakeDocker, tmp_path: Path
) -> None:
    with_docker.answers("ls")

    with pytest.raises(NotFound) as missing:
        launch(spec(OF_AWS), "i-1", {}, tmp_path, tmp_path / "log", lambda process: None)

    assert missing.value.command == ("peagle", "image", "build", "tiny", "--runtime", "cpu")
    assert not [one for one in with_docker.calls if one["argv"][0] == "run"]


@pytest.mark.thorough
def test_baked_weights_are_found_only_by_the_container_of_their_image(
    with_docker: FakeDocker, tmp_path: Path
) -> None:
    baked = {"SM_VLLM_MODEL": "/opt/ml/model/target"}
    gpu = OWN.replace(":1", ":gpu")
    with_docker.has_image(OWN)
    with_docker.has_image(gpu, {**LABELS, "peagle.runtime": "gpu"})

    assert only_in_image(spec(OWN, **baked), tmp_path) is None
    for image in (gpu, OWN.replace(":1", ":unknown")):
        reason = only_in_image(spec(image, **baked), tmp_path)
        assert reason == f"its weights are baked into {image}, which this sandbox does not run"
    state.write_engine_kind("process")
    assert only_in_image(spec(OWN, **baked), tmp_path) is not None


def test_weights_that_are_here_need_no_image(own_home: Path, tmp_path: Path) -> None:
    (tmp_path / "model" / "target").mkdir(parents=True)

    assert only_in_image(spec(OWN, SM_VLLM_MODEL="/opt/ml/model/target"), tmp_path) is None


def test_a_forgotten_mount_of_an_image_of_aws_fails_in_the_engine(
    own_home: Path, tmp_path: Path
) -> None:
    assert only_in_image(spec(OF_AWS, SM_VLLM_MODEL="/opt/ml/model"), tmp_path) is None
