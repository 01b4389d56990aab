"""From a request to the launch of an engine, and what the engine did not get."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from peagle.engine.cpu import for_cpu
from peagle.engine.machine import Machine
from peagle.images import Image
from peagle.sandbox.instance import EngineInstance, LaunchFailed
from peagle.sandbox.launch import nearest_image
from peagle.sandbox.launch_spec import LaunchSpec, ModelData, launch_spec, not_applied
from tests.sandbox.sandboxes import Sandbox, fake_engine

FOLDER = {"S3Uri": "s3://b/p/", "S3DataType": "S3Prefix", "CompressionType": "None"}
AWS = "763104351884"
VARIANT: dict[str, Any] = {"VariantName": "v", "ModelName": "m", "InitialInstanceCount": 1}

MACHINE = Machine(16 * 2**30, 4, "Linux", "x86_64")


@dataclass
class SomeModel:
    container: Mapping[str, Any]
    others: list[Mapping[str, Any]] = field(default_factory=list)
    tags: list[dict[str, str]] = field(default_factory=list)

    @property
    def all_containers(self) -> list[Mapping[str, Any]]:
        return [self.container, *self.others]


def spec(container: Mapping[str, Any] | None = None, **variant: Any) -> LaunchSpec:
    return launch_spec("us-east-1", "e", {**VARIANT, **variant}, SomeModel(container or {}), {AWS})


def test_weights_are_placed_where_the_container_reads_them() -> None:
    container = {
        "ModelDataUrl": "s3://b/m.tar.gz",
        "ModelDataSource": {"S3DataSource": FOLDER},
        "AdditionalModelDataSources": [
            {"ChannelName": "drafter", "S3DataSource": {**FOLDER, "CompressionType": "Gzip"}},
            {"ChannelName": "one", "S3DataSource": {**FOLDER, "S3DataType": "S3Object"}},
        ],
    }
    more = PurePosixPath("additional-model-data-sources")
    assert spec(container).model_data == (
        ModelData("s3://b/m.tar.gz", PurePosixPath("model"), archive=True),
        ModelData("s3://b/p/", PurePosixPath("model")),
        ModelData("s3://b/p/", more / "drafter", archive=True),
        ModelData("s3://b/p/", more / "one", single=True),
    )


def test_the_pair_is_the_value_of_the_models_tag() -> None:
    tags = [{"Key": "other", "Value": "x"}, {"Key": "peagle:pair", "Value": "a/b+c"}]
    assert launch_spec("r", "e", VARIANT, SomeModel({}, tags=tags)).pair == "a/b+c"
    assert spec().pair == ""


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("a/b+c", "old"),
        ("a/b+d_e", "special"),
        ("a/b", "alone"),
        ("a/b+unknown", "newest of it"),
        ("x/y", "another"),
        ("z/z+z", "another"),
        ("", "another"),
    ],
)
def test_a_container_runs_the_image_of_its_pair(pair: str, expected: str) -> None:
    newest_first = {
        "another": "x/y+z",
        "newest of it": "a/b+z",
        "alone": "a/b",
        "special": "a/b+d#e",
        "old": "a/b+c",
    }
    found = [
        Image(name, "id", "", 0, None, "", {"peagle.pair": served}, ())
        for name, served in newest_first.items()
    ]
    assert nearest_image(pair, found).name == expected


def test_the_startup_time_is_that_of_the_variant() -> None:
    assert spec(ContainerStartupHealthCheckTimeoutInSeconds=900).startup_seconds == 900
    assert spec().startup_seconds == 600


def test_ignored_settings_are_limitations() -> None:
    model = SomeModel({}, [{}])
    found = launch_spec("r", "e", {**VARIANT, "InitialInstanceCount": 7}, model)
    assert found.limitations == (
        "the sandbox runs 4 of 7 instances",
        "only the first container is started",
    )
    assert (found.count, spec().count, spec(InitialInstanceCount=3).count) == (4, 1, 3)
    assert spec().limitations == spec(InitialInstanceCount=3).limitations == ()


@pytest.mark.parametrize(
    ("image", "plain"),
    [
        (f"{AWS}.dkr.ecr.us-east-1.amazonaws.com/vllm:0.28.0", True),
        ("111122223333.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny:1", False),
        ("peagle-tiny:1", False),
        ("", False),
    ],
)
def test_only_images_of_aws_are_plain(image: str, plain: bool) -> None:
    assert spec({"Image": image}).plain is plain


@pytest.mark.parametrize(
    ("image", "vllm"),
    [
        ("763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:0.30.0-gpu-py312-cu130", "0.30.0"),
        ("localhost:5000/vllm:0.28.0", "0.28.0"),
        ("vllm:server-sagemaker-cuda-v2.6", None),
        ("vllm@sha256:00", None),
    ],
)
def test_the_images_tag_names_its_vllm(image: str, vllm: str | None) -> None:
    assert spec({"Image": image}).vllm == vllm


def test_an_image_by_its_digest_has_the_vllm_of_the_catalogue() -> None:
    digest = f"sha256:{'d' * 64}"
    model = SomeModel({"Image": f"{AWS}.dkr.ecr.us-east-1.amazonaws.com/vllm@{digest}"})

    found = launch_spec("us-east-1", "e", VARIANT, model, {AWS}, {digest: "0.27.1"})

    assert (found.vllm, found.plain) == ("0.27.1", True)
    assert launch_spec("us-east-1", "e", VARIANT, model, {AWS}).vllm is None


@pytest.fixture
def _here(tmp_path: Path) -> Iterator[None]:
    sandbox = Sandbox(tmp_path, fake_engine(tmp_path / "engine"))
    with sandbox.at_home():
        yield
    assert sandbox.processes() == []


@pytest.mark.thorough
@pytest.mark.usefixtures("_here")
def test_an_engine_that_is_not_healthy_in_time_is_ended() -> None:
    environment = {"FAKE_ENGINE": "never-healthy", "SM_VLLM_MODEL": "some/model"}
    begin = time.monotonic()
    with pytest.raises(LaunchFailed) as failed:
        EngineInstance(LaunchSpec("us-east-1", "e", "v", environment, (), 1)).start(lambda _: None)
    assert 1 <= time.monotonic() - begin < 10
    assert str(failed.value) == (
        "The primary container for production variant v did not pass the ping health check. "
        "Please check CloudWatch logs for this endpoint."
    )


def missing(**planned: str) -> tuple[str, ...]:
    environment = {f"SM_VLLM_{name}": value for name, value in planned.items()}
    return not_applied(environment, for_cpu(environment, MACHINE)[0])


def test_arguments_for_a_gpu_are_named_with_their_values() -> None:
    assert missing(
        GPU_MEMORY_UTILIZATION="42",
        ENABLE_EXPERT_PARALLEL="true",
        TENSOR_PARALLEL_SIZE="4",
        MAX_MODEL_LEN="512",
    ) == (
        "--enable-expert-parallel",
        "--gpu-memory-utilization 42",
        "--tensor-parallel-size 4 (1 instead)",
    )


def test_parts_of_the_speculation_are_named_one_by_one() -> None:
    config = {"method": "eagle3", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 2}
    assert missing(SPECULATIVE_CONFIG=json.dumps(config)) == (
        "--speculative-config.draft_tensor_parallel_size 2 (1 instead)",
    )


def test_a_stand_in_s_model_and_name_are_not_listed() -> None:
    planned = {"SM_VLLM_MODEL": "openai/gpt-oss-20b", "SM_VLLM_QUANTIZATION": "mxfp4"}
    run = {"SM_VLLM_MODEL": "/opt/ml/model/target", "OMP_NUM_THREADS": "1"}
    assert not_applied(planned, run) == ("--quantization mxfp4",)
