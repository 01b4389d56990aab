"""Weights that vLLM streams from S3: the environment of such a plan, and what is refused."""

from __future__ import annotations

import json
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path

import pytest

from peagle_serve import weights as streaming
from peagle_serve.checks import check_built_for, check_pair
from peagle_serve.command import command
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.weights import check_streamer, unused, with_model
from tests.unit.containers.weights import HEAD_TENSORS, model, pair, safetensors
from tests.unit.rendering.plans import plan_of

TARGET, DRAFTER = "s3://models/pair/target/", "s3://models/pair/drafter/"
SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
LOAD_FORMAT = "SM_VLLM_LOAD_FORMAT"


def drafting(drafter: str) -> str:
    return json.dumps({"method": "eagle3", "model": drafter, "num_speculative_tokens": 5})


@pytest.fixture
def streamer(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules of this image: all required ones, until a test removes one."""
    there = ["runai_model_streamer", "runai_model_streamer_s3"]

    def find_spec(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name in there else None

    monkeypatch.setattr(streaming, "find_spec", find_spec)
    return there


def test_the_environment_of_a_streamed_plan_becomes_vllms_arguments(
    tmp_path: Path, streamer: list[str]
) -> None:
    plan = plan_of("streamed")
    environment = {**plan.environment, "PEAGLE_ML_ROOT": str(tmp_path)}

    argv = command(environment)

    after = dict(pairwise(argv))
    assert after["--model"] == plan.target.weights.location
    assert after["--load-format"] == "runai_streamer"
    speculation = json.loads(after["--speculative-config"])
    assert speculation["model"] == "s3://models/gpt-oss-120b/drafter/"
    check_streamer(with_model(environment))


def test_an_s3_uri_takes_precedence_over_hub_and_mount(tmp_path: Path) -> None:
    model(tmp_path / "model")
    environment = {
        "SM_VLLM_MODEL": TARGET,
        "HF_MODEL_ID": "org/other",
        "PEAGLE_ML_ROOT": str(tmp_path),
    }

    chosen = with_model(environment)

    assert chosen["SM_VLLM_MODEL"] == TARGET
    assert unused(environment, chosen) == (
        f"HF_MODEL_ID (org/other) is not used: SM_VLLM_MODEL is set, and {TARGET} is served"
    )


@pytest.mark.parametrize("package", ["runai_model_streamer", "runai_model_streamer_s3"])
@pytest.mark.parametrize(
    "environment",
    [
        {"SM_VLLM_MODEL": TARGET, LOAD_FORMAT: "runai_streamer"},
        {"SM_VLLM_MODEL": "org/name", SPECULATION: drafting(DRAFTER)},
    ],
)
def test_a_missing_streamer_is_refused_before_vllm_starts(
    environment: dict[str, str], package: str, streamer: list[str]
) -> None:
    streamer.remove(package)

    with pytest.raises(InvalidEnvironment) as refused:
        check_streamer(environment)

    assert f"but this image has no {package}" in refused.value.message
    assert "runai-model-streamer[s3]" in refused.value.fix


def test_models_outside_of_s3_need_no_streamer(streamer: list[str]) -> None:
    streamer.clear()

    check_streamer({"SM_VLLM_MODEL": "org/name", SPECULATION: drafting("/opt/ml/model/drafter")})


@pytest.mark.parametrize(
    "environment",
    [
        {"SM_VLLM_MODEL": TARGET},
        {"SM_VLLM_MODEL": TARGET, SPECULATION: drafting(DRAFTER)},
        {"SM_VLLM_MODEL": TARGET, LOAD_FORMAT: "auto", SPECULATION: drafting(DRAFTER)},
        {"SM_VLLM_MODEL": "org/a", LOAD_FORMAT: "runai_streamer", SPECULATION: drafting(DRAFTER)},
    ],
)
def test_what_vllm_can_load_is_accepted(environment: dict[str, str], streamer: list[str]) -> None:
    check_streamer(environment)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        # By default vLLM streams only with a target in S3, then the drafter too.
        ({"SM_VLLM_MODEL": "org/name", SPECULATION: drafting(DRAFTER)}, DRAFTER),
        ({"SM_VLLM_MODEL": TARGET, LOAD_FORMAT: "safetensors"}, TARGET),
    ],
)
def test_a_load_format_that_cannot_read_s3_is_refused(
    environment: dict[str, str], named: str, streamer: list[str]
) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        check_streamer(environment)

    assert named in refused.value.message
    assert refused.value.fix == "set SM_VLLM_LOAD_FORMAT=runai_streamer"


def test_a_mounted_drafter_of_a_streamed_target_must_be_complete(tmp_path: Path) -> None:
    head = model(tmp_path / "model" / "drafter", "config.json")
    environment = {
        "SM_VLLM_MODEL": TARGET,
        LOAD_FORMAT: "runai_streamer",
        SPECULATION: drafting("/opt/ml/model/drafter"),
        "PEAGLE_ML_ROOT": str(tmp_path),
    }

    with pytest.raises(InvalidEnvironment) as refused:
        with_model(environment)
    assert str(head) in refused.value.message
    assert "*.safetensors" in refused.value.fix
    (head / "model.safetensors").write_bytes(safetensors({"fc.weight": [2, 2]}))
    assert with_model(environment)["SM_VLLM_MODEL"] == TARGET


def test_head_and_target_in_folders_are_compared_with_any_loader(tmp_path: Path) -> None:
    tensors = {name: shape for name, shape in HEAD_TENSORS.items() if name != "mask_hidden"}
    environment = pair(tmp_path, tensors=tensors)

    with pytest.raises(InvalidEnvironment) as refused:
        check_pair({**environment, LOAD_FORMAT: "runai_streamer"})
    assert "no mask_hidden" in refused.value.message
    check_pair({**environment, LOAD_FORMAT: "dummy"})


def test_an_image_built_for_the_pair_accepts_it_from_s3(tmp_path: Path) -> None:
    built = {
        "pair": "org/target+org/head",
        "target": "org/target",
        "drafter": "org/head",
        "method": "eagle3",
        "parallel_drafting": False,
    }
    (tmp_path / "pair.json").write_text(json.dumps(built))
    environment = {"SM_VLLM_MODEL": TARGET, SPECULATION: drafting(DRAFTER)}

    check_built_for(environment, tmp_path / "pair.json")
    with pytest.raises(InvalidEnvironment) as refused:
        check_built_for({**environment, "SM_VLLM_MODEL": "org/other"}, tmp_path / "pair.json")
    assert "org/target+org/head" in refused.value.message
    assert "org/other" in refused.value.message
