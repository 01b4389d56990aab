"""GPT-OSS's vocabulary: found on this machine, and copied with the weights."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from peagle.checkpoints import files
from peagle.checkpoints.files import find_vocabulary, needs_vocabulary, vocabulary_folder
from peagle.planning.plan import Weights
from peagle.weights.sync import open_source
from peagle_serve.contract import MODEL, VOCABULARY_FILE, VOCABULARY_VARIABLE
from peagle_serve.weights import vocabulary as served_vocabulary
from tests.unit.checks.damage import tiny

CONTENT = b"aGVsbG8= 0\n"


@pytest.fixture(autouse=True)
def _nothing_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No vocabulary on this machine; ``CONTENT`` is the right one."""
    monkeypatch.setattr(files, "VOCABULARY_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setenv("PEAGLE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VOCABULARY_VARIABLE, raising=False)


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def model(folder: Path, model_type: str = "gpt_oss") -> Path:
    """The tiny target, as this type of model."""
    folder.mkdir(parents=True)
    for file in tiny("target").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": model_type}))
    return folder


def in_folder(folder: Path) -> Weights:
    return Weights(kind="directory", location=str(folder), engine_path="/opt/ml/model")


def no_aws() -> Any:
    raise AssertionError("AWS gets no request")


@pytest.mark.parametrize("variable", [VOCABULARY_VARIABLE, None])
def test_it_is_found_where_the_engine_looks(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "there" if variable else vocabulary_folder()
    if variable:
        monkeypatch.setenv(variable, str(folder))
    assert find_vocabulary() is None
    put(folder / VOCABULARY_FILE, b"another file")
    assert find_vocabulary() is None, "openai_harmony would refuse it"
    put(folder / VOCABULARY_FILE, CONTENT)
    path = find_vocabulary()
    assert path is not None
    assert (path.name, path.read_bytes()) == (VOCABULARY_FILE, CONTENT)


@pytest.mark.thorough
def test_a_sync_copies_it_with_a_target_that_needs_it(tmp_path: Path) -> None:
    gpt_oss, other = model(tmp_path / "gpt-oss"), model(tmp_path / "llama", "llama")
    without = open_source(in_folder(gpt_oss), no_aws)
    assert needs_vocabulary(without.source)
    put(vocabulary_folder() / VOCABULARY_FILE, CONTENT)
    source = open_source(in_folder(gpt_oss), no_aws)
    file = source.files[VOCABULARY_FILE]
    assert file.size == len(CONTENT)
    assert source.read(VOCABULARY_FILE, 2, 5) == CONTENT[2:7]
    assert len(source.files) == len(without.files) + 1
    assert source.location == without.location
    assert VOCABULARY_FILE not in open_source(in_folder(other), no_aws).files


def test_the_container_uses_the_one_beside_the_weights(tmp_path: Path) -> None:
    folder = model(tmp_path / "gpt-oss")
    chosen = {MODEL: str(folder)}
    assert served_vocabulary({}, chosen) == {}
    (folder / VOCABULARY_FILE).write_bytes(CONTENT)
    assert served_vocabulary({}, chosen) == {VOCABULARY_VARIABLE: str(folder)}
    assert served_vocabulary({VOCABULARY_VARIABLE: "/x"}, chosen) == {}
    assert served_vocabulary({}, {MODEL: "openai/gpt-oss-20b"}) == {}
