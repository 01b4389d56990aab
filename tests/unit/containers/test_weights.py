"""Which weights vLLM loads, and refusals of missing, damaged and foreign ones."""

import json
from pathlib import Path

import pytest

from peagle_serve import weights
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.weights import with_model
from tests.unit.containers.weights import model, safetensors

SPECULATION = "SM_VLLM_SPECULATIVE_CONFIG"
LOAD_FORMAT = "SM_VLLM_LOAD_FORMAT"
S3_TARGET = "s3://models/pair/target/"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder that stands for /opt/ml."""
    (tmp_path / "model").mkdir()
    return tmp_path


def served(root: Path, **variables: str) -> dict[str, str]:
    return with_model({"PEAGLE_ML_ROOT": str(root), **variables})


def refusal(root: Path, **variables: str) -> InvalidEnvironment:
    """The refusal of the folder ``model`` below ``root``, or of what the variables name."""
    with pytest.raises(InvalidEnvironment) as refused:
        served(root, **variables)
    assert "\n" not in str(refused.value)
    return refused.value


def drafting(drafter: str) -> str:
    return json.dumps({"method": "eagle3", "model": drafter, "num_speculative_tokens": 5})


@pytest.mark.parametrize(("mounted", "variables", "expected"), [
    (["model"], {"SM_VLLM_MODEL": "a/b", "HF_MODEL_ID": "c/d"}, "a/b"),
    (["model"], {"HF_MODEL_ID": "c/d"}, "ROOT/model"),
    (["model/target", "model/drafter"], {}, "ROOT/model/target"),
    ([], {"HF_MODEL_ID": "c/d"}, "c/d"),
    ([], {"HF_MODEL_ID": "c/d", "SM_VLLM_MODEL": ""}, "c/d"),
    (["model"], {"SM_VLLM_MODEL": S3_TARGET, "HF_MODEL_ID": "c/d"}, S3_TARGET),
    (["model/target"], {"SM_VLLM_MODEL": "/opt/ml/model/target"}, "ROOT/model/target"),
])  # fmt: skip
def test_the_model_that_is_served(
    root: Path, mounted: list[str], variables: dict[str, str], expected: str
) -> None:
    for folder in mounted:
        model(root / folder)
    assert served(root, **variables)["SM_VLLM_MODEL"] == expected.replace("ROOT", str(root))


def test_paths_of_the_container_are_resolved(root: Path) -> None:
    target = model(root / "model" / "target")
    head = model(root / "additional-model-data-sources" / "drafter")
    config = '{"model" :"/opt/ml/additional-model-data-sources/drafter" , "x": "/opt/ml/model"}'
    named = {"SM_VLLM_MODEL": "/opt/ml/model/target", "SM_VLLM_TOKENIZER": "/opt/ml/model/target"}
    chosen = served(root, **named, **{SPECULATION: config})
    assert chosen["SM_VLLM_MODEL"] == chosen["SM_VLLM_TOKENIZER"] == str(target)
    assert json.loads(chosen[SPECULATION]) == {"model": str(head), "x": "/opt/ml/model"}
    for path in ("/opt/mlops/model", "org/model", "s3://bucket/opt/ml/model"):
        other = served(root, SM_VLLM_MODEL="a/b", SM_VLLM_TOKENIZER=path)
        assert other["SM_VLLM_TOKENIZER"] == path


@pytest.mark.parametrize(("files", "what"), [
    ([], "has no config.json (it holds nothing)"),
    (["model.safetensors"], "has no config.json (it holds model.safetensors)"),
    (["config.json"], "has no safetensors files (it holds config.json)"),
    (list("abcdefg"), "has no config.json (it holds a, b, c, d, e, and 2 more)"),
])  # fmt: skip
def test_a_folder_without_a_model_is_refused(root: Path, files: list[str], what: str) -> None:
    folder = root / "model" / "drafter"
    folder.mkdir()
    for name in files:
        (folder / name).write_text("{}")
    reported = refusal(
        root, SM_VLLM_MODEL="a/b", **{SPECULATION: drafting("/opt/ml/model/drafter")}
    )
    assert SPECULATION in reported.message
    assert what in reported.message


def test_a_missing_model_is_refused(root: Path) -> None:
    assert "set SM_VLLM_MODEL or HF_MODEL_ID" in refusal(root).fix
    target = model(root / "model" / "target", "config.json")
    reported = refusal(root, SM_VLLM_MODEL="/opt/ml/model/tarqet")
    assert "which cannot be read: No such file" in reported.message
    dummy = {"SM_VLLM_MODEL": "/opt/ml/model/target", LOAD_FORMAT: "dummy"}
    assert served(root, **dummy)["SM_VLLM_MODEL"] == str(target), "it needs no weights"


@pytest.mark.parametrize(("file", "content", "what"), [
    ("model.safetensors", b"", "model.safetensors is truncated"),
    ("model.safetensors", safetensors({"a": [1000]})[:-1], "is truncated: "),
    ("model.safetensors", safetensors({"a": [1000]})[:40], "it has 40 bytes"),
    ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]", "its header is not a JSON object"),
    ("model.safetensors", b"\xff" * 64, "or not a safetensors file"),
    ("config.json", b"", "is not valid JSON"),
    ("config.json", b'{"a": ', "is not valid JSON"),
    ("config.json", b"[]", "is not a JSON object"),
])  # fmt: skip
def test_damaged_files_are_refused(root: Path, file: str, content: bytes, what: str) -> None:
    (model(root / "model") / file).write_bytes(content)
    reported = refusal(root)
    assert what in reported.message
    assert file in reported.message
    assert "again" in reported.fix


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "w.pth", "w.gguf", "w.ckpt"])
def test_weights_in_other_formats_are_refused(root: Path, name: str) -> None:
    folder = model(root / "model", "config.json", name)
    assert f"no safetensors files (it holds {name})" in refusal(root).message
    (folder / "model.safetensors").write_bytes(safetensors({"a": [1]}))
    assert served(root)["SM_VLLM_MODEL"] == str(folder)
    assert "which is a file" in refusal(root, SM_VLLM_MODEL=str(folder / name)).message


@pytest.mark.parametrize(("files", "more", "is_set"), [
    (("config.json", "o200k_base.tiktoken"), {}, True),
    (("config.json", "o200k_base.tiktoken"), {"TIKTOKEN_ENCODINGS_BASE": "/mine"}, False),
    (("config.json", "tokenizer.json"), {}, False),
])  # fmt: skip
def test_a_vocabulary_beside_the_weights_is_used(
    tmp_path: Path, files: tuple[str, ...], more: dict[str, str], is_set: bool
) -> None:
    folder = str(model(tmp_path / "m", *files))
    variables = weights.vocabulary(more, {"SM_VLLM_MODEL": folder})
    assert variables == ({"TIKTOKEN_ENCODINGS_BASE": folder} if is_set else {})
    assert weights.vocabulary(more, {"SM_VLLM_MODEL": "org/name"}) == {}


def test_of_the_hub_only_safetensors_are_loaded(root: Path) -> None:
    assert served(root, HF_MODEL_ID="org/name")[LOAD_FORMAT] == "safetensors"
    assert served(root, HF_MODEL_ID="org/name", **{LOAD_FORMAT: "dummy"})[LOAD_FORMAT] == "dummy"
    assert LOAD_FORMAT not in served(root, SM_VLLM_MODEL=S3_TARGET)


def test_a_mount_and_its_files_may_be_links(root: Path) -> None:
    repository = root / "hub" / "models--a--b"
    blob = model(repository / "blobs", "model.safetensors") / "model.safetensors"
    snapshot = model(repository / "snapshots" / "123", "config.json")
    (snapshot / "model.safetensors").symlink_to(blob)
    (root / "model").rmdir()
    (root / "model").symlink_to(snapshot)
    assert served(root)["SM_VLLM_MODEL"] == str(root / "model")
