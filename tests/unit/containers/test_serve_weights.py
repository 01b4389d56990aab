"""The choice of vLLM's weights, and refusals of missing or damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle_serve.contract import InvalidEnvironment
from peagle_serve.weights import unused, with_model
from tests.unit.containers.weights import model, safetensors

SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder that stands for /opt/ml."""
    (tmp_path / "model").mkdir()
    return tmp_path


def served(root: Path, **variables: str) -> dict[str, str]:
    return with_model({"PEAGLE_ML_ROOT": str(root), **variables})


def test_sm_vllm_model_takes_precedence(root: Path) -> None:
    model(root / "model")

    assert served(root, SM_VLLM_MODEL="a/b", HF_MODEL_ID="c/d")["SM_VLLM_MODEL"] == "a/b"


def test_a_mounted_model_takes_precedence_over_the_hub(root: Path) -> None:
    model(root / "model")

    assert served(root, HF_MODEL_ID="c/d")["SM_VLLM_MODEL"] == str(root / "model")


def test_the_target_folder_is_served_if_a_drafter_folder_exists(root: Path) -> None:
    model(root / "model" / "target")
    model(root / "model" / "drafter")

    assert served(root)["SM_VLLM_MODEL"] == str(root / "model" / "target")


@pytest.mark.parametrize("blank", [{}, {"SM_VLLM_MODEL": ""}])
def test_without_a_mount_the_hub_model_is_served(root: Path, blank: dict[str, str]) -> None:
    assert served(root, HF_MODEL_ID="c/d", **blank)["SM_VLLM_MODEL"] == "c/d"


def test_a_missing_model_is_rejected(root: Path) -> None:
    with pytest.raises(InvalidEnvironment) as refused:
        served(root)
    assert "set SM_VLLM_MODEL or HF_MODEL_ID" in refused.value.fix


def test_paths_of_the_container_are_resolved(root: Path) -> None:
    model(root / "model" / "target")
    head = model(root / "additional-model-data-sources" / "drafter")
    config = '{"model" :"/opt/ml/additional-model-data-sources/drafter" , "x": "/opt/ml/model"}'

    chosen = served(
        root,
        SM_VLLM_MODEL="/opt/ml/model/target",
        SM_VLLM_TOKENIZER="/opt/ml/model/target",
        **{SPECULATION: config},
    )

    assert chosen["SM_VLLM_MODEL"] == str(root / "model" / "target")
    assert chosen["SM_VLLM_TOKENIZER"] == str(root / "model" / "target")
    assert chosen[SPECULATION] == f'{{"model" :"{head}" , "x": "/opt/ml/model"}}'


@given(st.dictionaries(TEXT.filter(lambda name: name != "model"), TEXT, max_size=4), TEXT)
def test_only_the_drafters_path_is_changed(others: dict[str, str], folder: str) -> None:
    before, after = json.dumps(others, indent=1)[1:-1], "" if not others else ", "

    def config_with(model: str) -> str:
        return f'{{{before}{after}"model": {json.dumps(model)}\n}}'

    config, hub = config_with(f"/opt/ml/{folder}"), config_with(f"org/{folder}")
    with pytest.raises(InvalidEnvironment) as refused:
        with_model({"PEAGLE_ML_ROOT": "/nowhere", "SM_VLLM_MODEL": "a/b", SPECULATION: config})
    assert f'"model" of {SPECULATION} is /nowhere/' in refused.value.message

    assert with_model({"SM_VLLM_MODEL": "a/b", SPECULATION: hub})[SPECULATION] == hub


@pytest.mark.parametrize("path", ["/opt/mlops/model", "org/model", "s3://bucket/opt/ml/model"])
def test_other_paths_are_unchanged(path: str, root: Path) -> None:
    named = {"SM_VLLM_MODEL": "a/b", "SM_VLLM_TOKENIZER": path}

    assert served(root, **named)["SM_VLLM_TOKENIZER"] == path


def test_a_missing_folder_suggests_the_one_nearby(root: Path) -> None:
    there = model(root / "model" / "target")

    with pytest.raises(InvalidEnvironment) as refused:
        served(root, SM_VLLM_MODEL="/opt/ml/model/tarqet")

    assert "which does not exist" in refused.value.message
    assert str(there) in refused.value.fix


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ([], ", which is empty"),
        (["model.safetensors"], "has no config.json (it holds model.safetensors)"),
        (["config.json"], "has no weights (it holds config.json)"),
        (
            ["a", "b", "c", "d", "e", "f", "g"],
            "has no config.json (it holds a, b, c, d, e, and 2 more)",
        ),
    ],
)
def test_a_folder_without_a_model_is_refused(root: Path, files: list[str], what: str) -> None:
    folder = root / "model" / "drafter"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    config = '{"model": "/opt/ml/model/drafter", "num_speculative_tokens": 1}'

    with pytest.raises(InvalidEnvironment) as refused:
        served(root, SM_VLLM_MODEL="a/b", **{SPECULATION: config})

    assert SPECULATION in refused.value.message
    assert what in refused.value.message


def test_weights_may_be_missing_with_another_load_format(root: Path) -> None:
    model(root / "model" / "target", "config.json")

    chosen = served(root, SM_VLLM_MODEL="/opt/ml/model/target", SM_VLLM_LOAD_FORMAT="dummy")

    assert chosen["SM_VLLM_MODEL"].endswith("model/target")


def refusal(root: Path) -> InvalidEnvironment:
    """The refusal of the folder ``model`` below ``root``."""
    with pytest.raises(InvalidEnvironment) as refused:
        served(root)
    assert "\n" not in str(refused.value)
    return refused.value


def test_missing_shards_of_an_index_are_named(root: Path) -> None:
    folder = model(root / "model", "config.json", "model-1.safetensors")
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-3.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))

    reported = refusal(root)

    assert "model.safetensors.index.json names missing files (2 of 3)" in reported.message
    assert "model-2.safetensors, model-3.safetensors" in reported.message


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "model.safetensors is truncated: it has 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "is a Git LFS pointer"),
        (safetensors({"a": [1000]})[:-1], "is truncated: "),
        (safetensors({"a": [1000]})[:40], "the whole file has 40"),
        (b"\x02\0\0\0\0\0\0\0[]", "its header is not a JSON object"),
        (b"\xff" * 64, "or not a safetensors file"),
    ],
)
def test_damaged_weights_are_refused(root: Path, content: bytes, what: str) -> None:
    folder = model(root / "model")
    (folder / "model.safetensors").write_bytes(content)

    reported = refusal(root)

    assert what in reported.message
    assert "model.safetensors" in reported.message
    assert "again" in reported.fix


@given(st.binary(max_size=300))
def test_arbitrary_bytes_as_weights_are_rejected(tmp_path_factory: pytest.TempPathFactory,
                                               content: bytes) -> None:  # fmt: skip
    root = tmp_path_factory.mktemp("root")
    (model(root / "model") / "model.safetensors").write_bytes(content)

    assert refusal(root).fix


@pytest.mark.parametrize(
    ("content", "what"), [("", "is empty"), ('{"a": ', "is not valid JSON"), ("[]", "not a JSON")]
)
def test_a_damaged_config_is_refused(root: Path, content: str, what: str) -> None:
    (model(root / "model") / "config.json").write_text(content)

    assert what in refusal(root).message


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"SM_VLLM_MODEL": "a/b", "HF_MODEL_ID": "c/d"}, "SM_VLLM_MODEL is set, and a/b is served"),
        ({"HF_MODEL_ID": "c/d"}, "/opt/ml/model has weights"),
    ],
)
def test_an_unused_hub_model_is_a_warning(environment: dict[str, str], why: str) -> None:
    chosen = {"SM_VLLM_MODEL": "a/b"}

    assert why in unused(environment, chosen)
    assert "HF_MODEL_ID (c/d) is not used" in unused(environment, chosen)


@pytest.mark.parametrize("named", [{}, {"HF_MODEL_ID": ""}, {"HF_MODEL_ID": "a/b"}])
def test_a_used_hub_model_is_no_warning(named: dict[str, str]) -> None:
    assert unused(named, {"SM_VLLM_MODEL": "a/b"}) == ""
