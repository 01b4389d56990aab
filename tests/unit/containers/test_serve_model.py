"""Which weights vLLM is given, and what is said when they are not there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import WrongEnvironment
from serve.model import with_model

SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """What stands for /opt/ml on this machine."""
    (tmp_path / "model").mkdir()
    return tmp_path


def model(folder: Path, *files: str) -> Path:
    """A folder that holds a model, as far as can be seen from outside."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in files or ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


def served(root: Path, **variables: str) -> dict[str, str]:
    return with_model({"PEAGLE_ML_ROOT": str(root), **variables})


def test_a_named_model_comes_first(root: Path) -> None:
    model(root / "model")

    assert served(root, SM_VLLM_MODEL="a/b", HF_MODEL_ID="c/d")["SM_VLLM_MODEL"] == "a/b"


def test_then_a_mounted_one(root: Path) -> None:
    model(root / "model")

    assert served(root, HF_MODEL_ID="c/d")["SM_VLLM_MODEL"] == str(root / "model")


def test_where_target_and_drafter_lie_side_by_side_the_target_is_meant(root: Path) -> None:
    model(root / "model" / "target")
    model(root / "model" / "drafter")

    assert served(root)["SM_VLLM_MODEL"] == str(root / "model" / "target")


@pytest.mark.parametrize("blank", [{}, {"SM_VLLM_MODEL": ""}])
def test_then_one_of_the_hub(root: Path, blank: dict[str, str]) -> None:
    assert served(root, HF_MODEL_ID="c/d", **blank)["SM_VLLM_MODEL"] == "c/d"


def test_no_model_at_all_is_refused(root: Path) -> None:
    with pytest.raises(WrongEnvironment, match=r"no model is named .*SM_VLLM_MODEL or HF_MODEL_ID"):
        served(root)


def test_paths_of_the_container_lead_to_this_machine(root: Path) -> None:
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
    config = f'{{{before}{after}"model": {json.dumps(f"/opt/ml/{folder}")}\n}}'

    with pytest.raises(WrongEnvironment, match="no such folder"):
        with_model({"PEAGLE_ML_ROOT": "/nowhere", "SM_VLLM_MODEL": "a/b", SPECULATION: config})

    hub = config.replace("/opt/ml/", "org/", 1)
    assert with_model({"SM_VLLM_MODEL": "a/b", SPECULATION: hub})[SPECULATION] == hub


@pytest.mark.parametrize("path", ["/opt/mlops/model", "org/model", "s3://bucket/opt/ml/model"])
def test_other_paths_stay_as_they_are(path: str, root: Path) -> None:
    named = {"SM_VLLM_MODEL": "a/b", "SM_VLLM_TOKENIZER": path}

    assert served(root, **named)["SM_VLLM_TOKENIZER"] == path


def test_a_folder_that_is_not_there_is_named_with_the_one_that_is(root: Path) -> None:
    there = model(root / "model" / "target")

    with pytest.raises(WrongEnvironment) as refused:
        served(root, SM_VLLM_MODEL="/opt/ml/model/tarqet")

    assert "no such folder" in refused.value.message
    assert str(there) in refused.value.fix


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ([], "that folder is empty"),
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
        (folder / name).write_text("")
    config = '{"model": "/opt/ml/model/drafter", "num_speculative_tokens": 1}'

    with pytest.raises(WrongEnvironment) as refused:
        served(root, SM_VLLM_MODEL="a/b", **{SPECULATION: config})

    assert SPECULATION in refused.value.message
    assert what in refused.value.message


def test_weights_may_be_missing_where_vllm_is_told_to_load_otherwise(root: Path) -> None:
    model(root / "model" / "target", "config.json")

    chosen = served(root, SM_VLLM_MODEL="/opt/ml/model/target", SM_VLLM_LOAD_FORMAT="dummy")

    assert chosen["SM_VLLM_MODEL"].endswith("model/target")
