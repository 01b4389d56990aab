"""What is launched for a request: weights, image, stand-in, and what the engine did not get."""

import csv
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from moto.s3.models import s3_backends

from peagle.catalog import load_catalog
from peagle.engine.machine import Machine
from peagle.engine.process import EngineProcess, is_alive
from peagle.engine.runner import adapt_to_cpu
from peagle.render.image import serve_digest
from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.engines import EngineInstance
from peagle.sandbox.launch import (
    DRAFTER_PATH,
    TARGET_PATH,
    LaunchFailed,
    LaunchSpec,
    ModelData,
    download,
    launch,
    launch_spec,
    mount_tiny,
    not_applied,
    only_in_image,
    stand_in_for,
)
from tests.sandbox.sandboxes import Sandbox, fake_engine, record_daemon
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]
FOLDER = {"S3Uri": "s3://b/p/", "S3DataType": "S3Prefix", "CompressionType": "None"}
OF_AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0"
OWN = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:1"
REGION = "us-east-1"


def spec(container: Mapping[str, Any], instances: int = 1, pair: str = "") -> LaunchSpec:
    variant = {"VariantName": "v", "ModelName": "m", "InitialInstanceCount": instances}
    tags = [{"Key": "other", "Value": "x"}, {"Key": "peagle:pair", "Value": pair}]
    return launch_spec(REGION, "e", variant, [container], tags)


def test_the_request_says_what_is_launched() -> None:
    container = {
        "ModelDataSource": {"S3DataSource": FOLDER},
        "AdditionalModelDataSources": [{"ChannelName": "drafter", "S3DataSource": FOLDER}],
    }
    launched = spec(container, instances=7, pair="a/b+c")
    assert launched.model_data == (
        ModelData("s3://b/p/", PurePosixPath("model")),
        ModelData("s3://b/p/", PurePosixPath("additional-model-data-sources/drafter")),
    )
    assert (launched.pair, launched.count, launched.startup_seconds) == ("a/b+c", 4, 600)


@pytest.mark.parametrize(("image", "plain", "vllm"), [
    (OF_AWS.replace("0.28.0", "0.30.0-gpu-py312-cu130"), True, "0.30.0"),
    ("localhost:5000/vllm:0.28.0", False, "0.28.0"),
    ("", False, None),
])  # fmt: skip
def test_an_image_names_its_vllm_and_whether_it_is_aws_s(
    image: str, plain: bool, vllm: str | None
) -> None:
    launched = spec({"Image": image})
    assert (launched.plain, launched.vllm) == (plain, vllm)


@pytest.mark.thorough
def test_an_engine_that_is_not_healthy_in_time_is_ended(tmp_path: Path) -> None:
    sandbox = Sandbox(tmp_path, fake_engine(tmp_path / "engine"))
    environment = {"VLLM_FAKE_ENGINE": "never-healthy", "SM_VLLM_MODEL": "some/model"}
    begin = time.monotonic()
    with sandbox.at_home(), pytest.raises(LaunchFailed, match="did not pass the ping health check"):
        EngineInstance(LaunchSpec(REGION, "e", "v", environment, (), 1)).start(lambda _: None)
    assert 1 <= time.monotonic() - begin < 10
    assert sandbox.processes() == []


def test_arguments_for_a_gpu_are_named_with_their_values() -> None:
    planned = {
        "SM_VLLM_GPU_MEMORY_UTILIZATION": "42",
        "SM_VLLM_ENABLE_EXPERT_PARALLEL": "true",
        "SM_VLLM_TENSOR_PARALLEL_SIZE": "4",
        "SM_VLLM_MAX_MODEL_LEN": "512",
    }
    run, _ = adapt_to_cpu(planned, Machine(16 * 2**30, 4, "Linux", "x86_64"))
    assert not_applied(planned, run) == (
        "--enable-expert-parallel",
        "--gpu-memory-utilization 42",
        "--tensor-parallel-size 4 (1 instead)",
    )


def image_spec(image: str, pair: str = "", **environment: str) -> LaunchSpec:
    return LaunchSpec(
        REGION, "e", "AllTraffic", environment, (), 60, image=image, pair=pair,
        plain=image == OF_AWS,
    )  # fmt: skip


@pytest.fixture
def with_docker(own_home: Path, docker: FakeDocker) -> FakeDocker:
    """A sandbox that runs engines in containers."""
    record_daemon("docker")
    docker.answers("run", out="from the engine")
    docker.answers("rm")
    return docker


def started(docker: FakeDocker, spec: LaunchSpec, folder: Path) -> tuple[Any, dict[str, Path]]:
    """The call of ``docker run`` that launches the engine, and its mounts."""
    recorded: list[EngineProcess] = []
    launch(spec, "i-1", spec.environment, folder / "ml", folder / "log", recorded.append)
    (process,) = recorded
    end = time.monotonic() + 30
    while is_alive(process):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert "from the engine" in (folder / "log").read_text()
    (call,) = [call for call in docker.calls if call["argv"][0] == "run"]
    assert call["argv"][call["argv"].index("--name") + 1] == process.container
    binds = [word for word in call["argv"] if word.startswith("type=bind")]
    rows = [dict(field.split("=") for field in row[:-1]) for row in csv.reader(binds)]
    return call, {row["dst"]: Path(row["src"]) for row in rows}


@pytest.mark.thorough
def test_a_container_runs_the_models_own_image_or_the_newest_of_the_pair(
    with_docker: FakeDocker, tmp_path: Path
) -> None:
    with_docker.has_image(OWN)
    model = tmp_path / "own" / "ml" / "model"
    model.mkdir(parents=True)
    call, mounts = started(with_docker, image_spec(OWN, SM_VLLM_K="5"), tmp_path / "own")
    assert call["argv"][-2:] == [f"sha256:{OWN}", "serve"]
    assert call["environment"]["SM_VLLM_K"] == "5"
    assert call["environment"]["PEAGLE_IMAGE_DIGEST"] == f"sha256:{OWN}"
    assert mounts == {"/opt/ml/model": model}


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
    call, mounts = started(with_docker, image_spec(OF_AWS, "peagle/tiny+p-eagle"), tmp_path)
    assert call["argv"][-2:] == ["sha256:same:1", "serve"]
    assert mounts == {TARGET_PATH: (tmp_path / "ml/model/target").resolve()}


@pytest.mark.thorough
def test_baked_weights_are_found_only_by_the_container_of_their_image(
    with_docker: FakeDocker, tmp_path: Path
) -> None:
    baked = {"SM_VLLM_MODEL": "/opt/ml/model/target"}
    gpu = OWN.replace(":1", ":gpu")
    with_docker.has_image(OWN)
    with_docker.has_image(gpu, {**LABELS, "peagle.runtime": "gpu"})
    assert only_in_image(image_spec(OWN, **baked), tmp_path) is None
    for image in (gpu, OWN.replace(":1", ":unknown")):
        assert only_in_image(image_spec(image, **baked), tmp_path)
    record_daemon("process")
    assert only_in_image(image_spec(OWN, **baked), tmp_path) is not None


MODEL = PurePosixPath("model")
Upload = Callable[[dict[str, bytes]], None]
"""Puts these files into the bucket ``models``."""


@pytest.fixture
def upload() -> Iterator[Upload]:
    s3 = s3_backends[ACCOUNT]["aws"]
    s3.create_bucket("models", REGION)

    def put(files: dict[str, bytes]) -> None:
        for name, content in files.items():
            s3.put_object("models", name, content)

    yield put
    s3.reset()


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder with their contents."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_prefix_becomes_a_folder(upload: Upload, tmp_path: Path) -> None:
    files = {"target/a.safetensors": b"12345", "target/ü b.json": b"{}", "drafter/c": b""}
    upload({f"pair/{name}": content for name, content in files.items()})
    upload({"pair-of-others/d": b""})
    download(ModelData("s3://models/pair/", MODEL), tmp_path, REGION)
    assert contents(tmp_path / "model") == files


@pytest.mark.parametrize(("files", "why"), [
    ({}, "no object exists below"),
    ({"bad/": b""}, "names no file"),
    ({"bad/a": b"", "bad/a/b": b""}, "Not a directory|File exists"),
    ({"bad/../../outside": b""}, "names no file"),
])  # fmt: skip
def test_keys_that_fail_a_deployment_are_refused(
    upload: Upload, tmp_path: Path, files: dict[str, bytes], why: str
) -> None:
    upload(files)
    with pytest.raises(LaunchFailed, match=why):
        download(ModelData("s3://models/bad/", MODEL), tmp_path / "ml", REGION)
    assert [path.name for path in tmp_path.iterdir()] == ["ml"]


def test_a_missing_bucket_is_refused(upload: Upload, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="s3://no-such-bucket/a/"):
        download(ModelData("s3://no-such-bucket/a/", MODEL), tmp_path / "ml", REGION)


TINY = load_catalog().targets["peagle/tiny"]
REQUESTED = {
    "SM_VLLM_MODEL": "openai/gpt-oss-20b", "SM_VLLM_REVISION": "abc",
    "SM_VLLM_SERVED_MODEL_NAME": "openai/gpt-oss-20b", "SM_VLLM_MAX_MODEL_LEN": "131072",
    "SM_VLLM_MAX_NUM_SEQS": "64", "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true",
}  # fmt: skip
P_EAGLE = {"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 5}


def speculating(**config: Any) -> dict[str, str]:
    return {**REQUESTED, "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config)}


def config_of(environment: dict[str, str]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(environment["SM_VLLM_SPECULATIVE_CONFIG"])
    return config


def test_the_target_is_replaced_and_the_plans_settings_stay() -> None:
    environment, _ = stand_in_for(speculating(**P_EAGLE, model="a/b"), TINY)
    assert config_of(environment) == {**P_EAGLE, "model": DRAFTER_PATH}
    environment.pop("SM_VLLM_SPECULATIVE_CONFIG")
    assert environment == {
        "SM_VLLM_MODEL": TARGET_PATH,
        "SM_VLLM_SERVED_MODEL_NAME": "openai/gpt-oss-20b",
        "SM_VLLM_MAX_MODEL_LEN": "2048",
        "SM_VLLM_MAX_NUM_SEQS": "64",
        "SM_VLLM_NO_ENABLE_PREFIX_CACHING": "true",
        "SM_VLLM_DTYPE": "float32",
    }
    served = stand_in_for({"SM_VLLM_MODEL": "Qwen/Qwen3-8B"}, TINY)[0]["SM_VLLM_SERVED_MODEL_NAME"]
    assert served == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(("requested", "drafter", "expected"), [
    ({"method": "eagle3"}, "eagle3", {"method": "eagle3"}),
    ({"method": "dflash"}, "p-eagle", {"method": "eagle3", "parallel_drafting": True}),
    ({"method": "ngram", "prompt_lookup_max": 4}, None, None),
])  # fmt: skip
def test_the_head_is_tinys_own_of_the_same_kind(
    requested: dict[str, Any], drafter: str | None, expected: dict[str, Any] | None
) -> None:
    planned = speculating(**requested, num_speculative_tokens=5)
    environment, chosen = stand_in_for(planned, TINY)
    assert (chosen.name if chosen else None) == drafter
    more = {"model": DRAFTER_PATH, "num_speculative_tokens": 5}
    assert config_of(environment) == (expected | more if expected else config_of(planned))


@pytest.mark.parametrize(("k", "length"), [(1, 1), (100, 10**6)])
def test_k_and_the_context_are_at_most_tinys(k: int, length: int) -> None:
    trained = next(head.k_trained for head in TINY.drafters if head.name == "p-eagle")
    assert trained is not None
    planned = speculating(**{**P_EAGLE, "num_speculative_tokens": k})
    environment, _ = stand_in_for({**planned, "SM_VLLM_MAX_MODEL_LEN": str(length)}, TINY)
    assert config_of(environment)["num_speculative_tokens"] == min(k, trained)
    assert environment["SM_VLLM_MAX_MODEL_LEN"] == str(min(length, 2048))
