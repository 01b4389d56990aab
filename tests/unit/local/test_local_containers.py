"""The arguments of Docker, the compose file, and plans that cannot run."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from peagle.catalog import load_catalog
from peagle.cli.main import cli
from peagle.engine import state as records
from peagle.engine.local import start_local
from peagle.engine.machine import Machine
from peagle.engine.process import EngineProcess, stop_engine
from peagle.engine.runner import (
    Container,
    LocalRunner,
    adapt_to_cpu,
    cannot_run,
    compose_file,
    find_image,
    run_arguments,
    start_container,
)
from peagle.errors import CloudError, NotFound, PeagleError, Refused, UserError
from peagle.images.docker import Docker, Image, show_image
from peagle.planning import Options, Plan, make_plan
from peagle.render.image import serve_digest
from tests.support import raises_code
from tests.unit.images.conftest import LABELS, FakeDocker, docker

__all__ = ["docker"]
SECRET = "hf_not-for-the-list-of-processes"
AS_ERROR: Any = {"catch_exceptions": False, "standalone_mode": False}
"""Settings of click's runner that raise the error of a command."""


@cache
def plan_for(pair: str, **more: Any) -> Plan:
    return make_plan(Options(pair=pair, **more), load_catalog())


@pytest.fixture
def container(tmp_path: Path) -> Container:
    folder = tmp_path / 'weights, "mine"'
    folder.mkdir()
    environment = {"HF_TOKEN": SECRET, "SM_VLLM_X": "$HOME ${A} it's"}
    return Container("peagle-x", "image:1", environment, {"/opt/ml/model": folder}, 8123, gpus=True)


def test_the_port_is_on_loopback_and_values_are_not_in_argv(container: Container) -> None:
    argv = run_arguments(container)
    assert argv[argv.index("--publish") + 1] == "127.0.0.1:8123:8080"
    assert {"--read-only", "--cap-drop", "--security-opt"} <= set(argv)
    assert argv[-2:] == ["image:1", "serve"]
    assert not any(SECRET in word for word in argv)
    assert [argv[n + 1] for n, word in enumerate(argv) if word == "--env"] == [
        "HF_TOKEN", "SM_VLLM_X",
    ]  # fmt: skip
    assert argv[argv.index("--gpus") + 1] == "all"


def test_a_folder_with_a_comma_is_mounted_as_one(container: Container) -> None:
    (mount,) = [word for word in run_arguments(container) if word.startswith("type=bind")]
    assert mount.endswith('weights, ""mine""",dst=/opt/ml/model,readonly')


def test_the_compose_file_equals_the_run_arguments(container: Container) -> None:
    ((name, service),) = yaml.safe_load(compose_file(container))["services"].items()
    arguments = run_arguments(container)

    def value_of(option: str) -> str:
        return arguments[arguments.index(option) + 1]

    assert name == value_of("--name")
    assert service["environment"] == {"HF_TOKEN": SECRET, "SM_VLLM_X": "$$HOME $${A} it's"}
    for key, option in (
        ("ports", "--publish"),
        ("tmpfs", "--tmpfs"),
        ("cap_drop", "--cap-drop"),
        ("security_opt", "--security-opt"),
    ):
        assert service[key] == [value_of(option)]
    assert (service["read_only"], service["shm_size"]) == (True, value_of("--shm-size"))
    cache, weights = service["volumes"]
    assert "type=volume,src=peagle-cache,dst=/var/cache/peagle" in arguments
    assert cache["target"] == "/var/cache/peagle"
    assert (weights["target"], weights["read_only"]) == ("/opt/ml/model", True)
    assert service["healthcheck"]["test"] == ["CMD-SHELL", value_of("--health-cmd")]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == "all"


def test_stop_removes_a_container_whose_command_was_killed(docker: FakeDocker) -> None:
    docker.answers("rm")
    stop_engine(EngineProcess(2**22 + 1, 1, 1, "log", "peagle-x"))
    assert docker.calls[-1]["argv"] == ["rm", "--force", "--volumes", "peagle-x"]


@pytest.mark.parametrize("name", ["PATH", "DOCKER_HOST"])
def test_variables_that_docker_itself_reads_are_refused(
    docker: FakeDocker, container: Container, tmp_path: Path, name: str
) -> None:
    wrong = Container("x", "i", {name: "1"}, {}, 1)
    with raises_code("reserved-variable", UserError) as caught:
        start_container(Docker(), wrong, tmp_path / "log")
    assert name in caught.value.message
    assert docker.calls == []


def image(docker: FakeDocker, **labels: str) -> Image:
    docker.has_image("mine", {**LABELS, **labels})
    return show_image(Docker(), "mine")


@pytest.mark.thorough
def test_the_newest_image_with_the_current_entrypoint_is_found(docker: FakeDocker) -> None:
    line = {"Repository": "mine", "Tag": "1"}
    docker.answers("ls", f"label=peagle.serve={serve_digest()}", "label=peagle.runtime=cpu",
                   "label=peagle.weights=mounted",
                   out=json.dumps(line))  # fmt: skip
    docker.has_image("mine:1")
    newest = find_image(Docker(), plan_for("tiny"), "cpu")
    assert newest is not None
    assert newest.name == "mine:1"
    assert find_image(Docker(), plan_for("tiny"), "gpu") is None


@pytest.mark.thorough
def test_a_named_image_for_another_pair_or_runtime_is_refused(docker: FakeDocker) -> None:
    docker.has_image("mine")
    build = ("peagle", "image", "build", "gpt-oss-20b")
    with raises_code("image-of-another-pair", UserError) as other:
        find_image(Docker(), plan_for("gpt-oss-20b"), "gpu", "mine", build)
    assert other.value.command == build
    assert "omit --image" in other.value.fix
    with raises_code("image-of-another-runtime", UserError) as raised:
        find_image(Docker(), plan_for("tiny"), "gpu", "mine")
    assert raised.value.fix == "omit --gpus"
    with pytest.raises(NotFound):
        find_image(Docker(), plan_for("tiny"), "gpu", "none")


@pytest.mark.thorough
@pytest.mark.parametrize("gpus", [False, True])
@pytest.mark.parametrize(("asked", "pair"), [
    ("tiny --no-speculation", "peagle/tiny --no-speculation"),
    ("tiny+eagle3 --drafter s3://models/head/",
     "peagle/tiny+eagle3 --drafter s3://models/head/")
])  # fmt: skip
def test_without_an_image_the_fix_builds_the_requested_one(
    docker: FakeDocker, own_home: Path, asked: str, pair: str, gpus: bool
) -> None:
    words = [*asked.split(), "--engine", "docker", *(["--gpus"] if gpus else [])]
    docker.answers("version", out="27.0")
    docker.answers("ls")
    build = f"peagle image build {pair} --runtime {'gpu' if gpus else 'cpu'}"
    with pytest.raises(NotFound) as up:
        CliRunner().invoke(cli, ["local", "up", *words], **AS_ERROR)
    with pytest.raises(NotFound) as collected:
        CliRunner().invoke(cli, ["warm", "--local", *words], **AS_ERROR)
    assert sorted(up.value.command) == sorted(build.split())
    assert collected.value.command == up.value.command


@pytest.mark.thorough
def test_on_gpus_the_environment_is_the_plans_and_on_a_cpu_it_is_adapted(
    docker: FakeDocker,
) -> None:
    plan = plan_for("gpt-oss-20b")
    built = image(docker)
    assert LocalRunner(built, gpus=True).local_environment(plan) == (plan.environment, ())
    with raises_code("not-runnable-here", Refused):
        LocalRunner(built).local_environment(plan)
    stored = plan_for("qwen3-8b", model_source="s3://models/q")
    with raises_code("not-runnable-here", Refused):
        LocalRunner(built, gpus=True).local_environment(stored)


@pytest.mark.thorough
@pytest.mark.parametrize(("output", "kind", "code"), [
    ("docker: Error response from daemon: port is already allocated.", UserError, "port-in-use"),
    ("docker: Error response from daemon: pull access denied for mine", CloudError,
     "registry-denied"),
])  # fmt: skip
def test_an_error_of_docker_at_the_start_is_reported(
    docker: FakeDocker, own_home: Path, output: str, kind: type[PeagleError], code: str
) -> None:
    docker.answers("run", code=125, err=output)
    options = LocalRunner(image(docker))
    with raises_code(code, kind):
        start_local(plan_for("tiny"), runner=options)
    assert records.local_engines() == ()


# Environments for GPUs, adapted to a CPU; and plans that a CPU cannot run.
GIB = 2**30
MACHINE = Machine(memory_bytes=16 * GIB, cores=4, system="Linux", architecture="x86_64")
TINY = {"SM_VLLM_MODEL": "/opt/ml/model/target"}
SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"


@pytest.mark.parametrize("name", [
    "SM_VLLM_KV_CACHE_DTYPE",
    "SM_VLLM_GPU_MEMORY_UTILIZATION",
    "SM_VLLM_QUANTIZATION",
    "SM_VLLM_ATTENTION_BACKEND",
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8",
])  # fmt: skip
def test_gpu_settings_are_dropped_with_a_note(name: str) -> None:
    changed, notes = adapt_to_cpu({**TINY, name: "value"}, MACHINE)
    assert name not in changed
    assert sum(note.startswith(f"{name}=value is dropped: ") for note in notes) == 1


def test_gpu_settings_of_the_speculation_are_dropped() -> None:
    config = {
        "method": "eagle3", "model": "/opt/ml/ä", "num_speculative_tokens": 7,
        "quantization": "fp8", "attention_backend": "FLASHINFER",
        "draft_tensor_parallel_size": 2,
    }  # fmt: skip
    changed, notes = adapt_to_cpu({SPECULATION: json.dumps(config)}, MACHINE)
    assert json.loads(changed[SPECULATION]) == {
        "method": "eagle3",
        "model": "/opt/ml/ä",
        "num_speculative_tokens": 7,
        "draft_tensor_parallel_size": 1,
    }
    assert len([note for note in notes if "of the speculation" in note or "draft_" in note]) == 2


def test_the_users_own_settings_stay() -> None:
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "12",
        "OMP_NUM_THREADS": "2",
        "SM_VLLM_ENFORCE_EAGER": "false",
    }
    changed, _ = adapt_to_cpu(settings, MACHINE)
    assert settings.items() <= changed.items()


@pytest.mark.parametrize(("environment", "weight_bytes", "why"), [
    ({"SM_VLLM_MODEL": "a/b"}, 0, "only local weights run, not its target (a/b)"),
    ({**TINY, SPECULATION: '{"model": "a/head"}'}, 0,
     "only local weights run, not its drafter (a/head)"),
    ({**TINY, "SM_VLLM_QUANTIZATION": "mxfp4"}, 0, "its weights are quantized (mxfp4)"),
    ({**TINY, SPECULATION: '{"method": "suffix"}'}, 0, "needs Arctic Inference"),
    (TINY, 8 * GIB + 1,
     "its weights take 8.0 GiB; the limit is half of this machine's memory, 8.0"),
])  # fmt: skip
def test_the_reason_why_a_plan_cannot_run_is_reported(
    environment: dict[str, str], weight_bytes: int, why: str
) -> None:
    assert why in (cannot_run(environment, weight_bytes, MACHINE) or "")


def test_a_cpu_compiles_only_on_request_and_notes_it() -> None:
    eager, _ = adapt_to_cpu(TINY, MACHINE)
    compiled, notes = adapt_to_cpu(TINY, MACHINE, compiled=True)
    assert eager["SM_VLLM_ENFORCE_EAGER"] == "true"
    assert "SM_VLLM_ENFORCE_EAGER" not in compiled
    assert any(note.startswith("the model is compiled") for note in notes)
