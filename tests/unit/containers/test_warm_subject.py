"""The key of an artifact covers what compiled code depends on, and nothing else."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from peagle_serve import warm
from peagle_serve.environment import KNOWN
from peagle_serve.warm import (
    UnknownDevice,
    canonical,
    compute_key,
    cpu_device,
    gpu_device,
    make_subject,
)
from tests.unit.containers.artifacts import SUBJECT
from tests.unit.containers.weights import TARGET, pair

HERE = {"cpu": "a processor", "instructions": "5" * 64}
OF_NO_MATTER = {
    "SM_VLLM_HOST": "127.0.0.1", "SM_VLLM_PORT": "8080", "SM_VLLM_API_KEY": '["one", "two"]',
    "SM_VLLM_HF_TOKEN": "a-token-of-ours", "SM_VLLM_SERVED_MODEL_NAME": "name",
    "SM_VLLM_MIDDLEWARE": "own.Class", "SM_VLLM_SSL_KEYFILE": "/key",
    "SM_VLLM_CHAT_TEMPLATE": "{{ messages }}", "SM_VLLM_DEFAULT_CHAT_TEMPLATE_KWARGS": "{}",
    "SM_VLLM_TOOL_CALL_PARSER": "openai", "SM_VLLM_ENABLE_AUTO_TOOL_CHOICE": "true",
    "SM_VLLM_REASONING_PARSER": "openai_gptoss", "SM_VLLM_ENABLE_FORCE_INCLUDE_USAGE": "true",
    "SM_VLLM_ALLOWED_ORIGINS": '["*"]', "SM_VLLM_UVICORN_LOG_LEVEL": "debug",
    "SM_VLLM_NO_ENABLE_LOG_DELTAS": "true", "SM_VLLM_OTLP_TRACES_ENDPOINT": "http://collector:4317",
    "VLLM_LOGGING_LEVEL": "DEBUG", "VLLM_MEDIA_CACHE": "/media",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "600", "VLLM_API_KEY": "a-key-of-ours",
    "VLLM_CACHE_ROOT": "/elsewhere", "TRITON_CACHE_DIR": "/elsewhere", "VLLM_NO_USAGE_STATS": "1",
    "HF_TOKEN": "another-token", "PEAGLE_DRAIN_SECONDS": "5", "SAGEMAKER_BIND_TO_PORT": "9000",
    "PATH": "/bin",
}  # fmt: skip
COMPILED = (
    "SM_VLLM_TOOL_PARSER_PLUGIN",  # code of the user's
    "SM_VLLM_GENERATION_CONFIG",  # in vLLM's own key
    "VLLM_CONFIGURE_LOGGING",
    "SM_VLLM_NO_ENABLE_PREFIX_CACHING",  # turned round
    "SM_VLLM_PORTS",  # unknown
    "VLLM_TUNED_CONFIG_FOLDER",  # kernels
    "TORCHINDUCTOR_MAX_AUTOTUNE",  # the compiler's
)


@pytest.fixture(autouse=True)
def _this_device(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "gpu" not in request.node.name:
        monkeypatch.setattr(warm, "gpu_device", lambda visible: HERE)


def subject_with(**environment: str) -> dict[str, Any]:
    return make_subject(environment, {"SM_VLLM_MODEL": "a/b"})


@pytest.mark.parametrize("name", COMPILED)
def test_variables_that_may_change_compiled_code_are_in_the_key(name: str) -> None:
    values = (subject_with(), subject_with(**{name: "x"}), subject_with(**{name: "y"}))
    assert len({compute_key(subject) for subject in values}) == 3


def test_other_variables_and_the_order_are_not() -> None:
    settings = dict.fromkeys((*COMPILED, *KNOWN), "x")
    shuffled = list({**settings, **OF_NO_MATTER, "SM_VLLM_MODEL": "x"}.items())
    random.Random(1).shuffle(shuffled)
    assert subject_with(**OF_NO_MATTER)["engine"] == {}
    assert compute_key(subject_with(**dict(shuffled))) == compute_key(
        subject_with(**{**settings, "SM_VLLM_SERVED_MODEL_NAME": "y"})
    )


def test_no_secret_is_in_the_subject() -> None:
    token, secret = "hf_" + "a1B2c3D4" * 4, "swordfish"
    for name in ("SM_VLLM_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "SM_VLLM_X_PASSWORD"):
        subject = subject_with(**{name: secret, "SM_VLLM_A": f"{secret}.", "SM_VLLM_B": token})
        assert secret not in json.dumps(subject)
        assert token not in json.dumps(subject)


def test_the_subject_describes_the_container(tmp_path: Path) -> None:
    chosen = pair(tmp_path)
    env = {**chosen, "SM_VLLM_MODEL": "/opt/ml/model/target", "PEAGLE_IMAGE_DIGEST": "sha256:1"}
    subject = make_subject(env, chosen)
    assert set(subject) == set(SUBJECT)
    assert (subject["format"], subject["image"], subject["device"]) == (1, "sha256:1", HERE)
    assert subject["engine"]["SM_VLLM_MODEL"] == "/opt/ml/model/target", "as it was given"
    assert len(compute_key(subject)) == 32
    assert json.loads(canonical(subject)) == subject
    assert b" " not in canonical({"a": [1, 2], "b": {}})
    content = make_subject({**env, "PEAGLE_IMAGE_CONTENT": "sha256:inside"}, chosen)
    assert content["image"] == "sha256:inside", "under every name"


def test_a_pair_is_identified_by_its_configs_or_revisions(tmp_path: Path) -> None:
    def pair_of(chosen: dict[str, str]) -> Any:
        return make_subject(chosen, chosen)["pair"]

    first, second = pair(tmp_path / "one"), pair(tmp_path / "two")
    before = pair_of(first)
    assert pair_of(second) == before
    other = pair_of(pair(tmp_path / "three", target={**TARGET, "hidden_size": 16}))
    (Path(second["SM_VLLM_MODEL"]) / "hf_quant_config.json").write_text("{}")
    for changed in (other, pair_of(second)):
        assert changed["target"] != before["target"]
        assert changed["drafter"] == before["drafter"]
    config = '{"method": "eagle3", "model": "c/d", "revision": "2", "num_speculative_tokens": 5}'
    hub = {"SM_VLLM_MODEL": "a/b", "SM_VLLM_REVISION": "1", "SM_VLLM_SPECULATIVE_CONFIG": config}
    assert pair_of(hub) == {"target": "a/b@1", "drafter": "c/d@2"}
    assert pair_of({"SM_VLLM_MODEL": "a/b"}) == {"target": "a/b@", "drafter": None}


def test_a_processor_is_identified_by_name_and_instruction_sets(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    texts = (
        "model name\t: EPYC\nflags\t\t: avx2 sse\n\nmodel name\t: B\nflags\t: avx2\n",
        "flags : sse avx2\nmodel name : EPYC\ncpu MHz : 1\n",
        "CPU part : 0xd40\nFeatures : fp asimd sve\n",
    )
    names = []
    for text in texts:
        info.write_text(text)
        names.append(cpu_device(info))
    assert names[0]["cpu"] == "EPYC"
    assert names[0] == names[1]
    assert names[2]["instructions"] != names[0]["instructions"]
    info.write_text("model name : EPYC\n")
    for file in (info, tmp_path / "gone"):
        with pytest.raises(UnknownDevice):
            cpu_device(file)


@pytest.mark.parametrize(("lines", "code", "expected"), [
    (["NVIDIA H200, 9.0, 580.95.05", "NVIDIA L4, 8.9, 580.95.05"], 0, ""),
    ([], 0, "reports no GPU: "),
    (["No devices were found"], 6, "reports no GPU: No devices were found"),
    (["NVIDIA H200, 9.0"], 0, "reports no GPU: NVIDIA H200, 9.0"),
    (None, 0, "nvidia-smi cannot be run"),
])  # fmt: skip
def test_gpus_are_identified_by_name_and_capability(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str] | None, code: int,
    expected: str,
) -> None:  # fmt: skip
    if lines is None:
        monkeypatch.setenv("PATH", str(tmp_path))
    else:
        (tmp_path / "output").write_text("".join(f"{line}\n" for line in lines))
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\ncat {tmp_path}/output; exit {code}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    if expected:
        with pytest.raises(UnknownDevice, match=expected):
            gpu_device()
    else:
        names = ["NVIDIA H200 (9.0)", "NVIDIA L4 (8.9)"]
        assert gpu_device() == {"gpus": names, "used": 2, "driver": "580"}
        assert gpu_device("1")["used"] == 1
