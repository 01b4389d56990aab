"""Weights that go into an image: those that vLLM reads, as `peagle weights sync` copies them."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from peagle.catalog import load_catalog
from peagle.checkpoints import files
from peagle.errors import Unsupported
from peagle.images.build import baked, members
from peagle.planning import Options, Plan, make_plan
from peagle.planning.plan import Weights
from peagle.render.image import BAKED_ROOT, Copied, Download, Recipe, dockerfile
from peagle.weights.sync import open_source
from peagle_serve.contract import VOCABULARY_FILE, VOCABULARY_VARIABLE
from tests.unit.aws.syncing import CONFIG, index_of, shard
from tests.unit.checkpoints.fake_hub import COMMIT, REPO, FakeHub, running
from tests.unit.checkpoints.web import Reply, WebRequest

PINNED = COMMIT + "0" * (40 - len(COMMIT))
MODEL = {
    "config.json": CONFIG,
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "model-00001-of-00002.safetensors": shard("a", 64),
    "model-00002-of-00002.safetensors": shard("b", 64),
    "model.safetensors.index.json": index_of(
        {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    ),
}
NOT_READ = {
    "pytorch_model.bin": b"a duplicate",
    "README.md": b"# read me",
    "LICENSE": b"yes",
    "training_args.bin": b"x",
    ".gitattributes": b"x",
}


def plan_with(weights: Weights) -> Plan:
    """A plan without a drafter, with these weights."""
    plan = make_plan(Options(pair="tiny", speculation=False), load_catalog())
    return plan.model_copy(update={"target": plan.target.model_copy(update={"weights": weights})})


def directory(folder: Path) -> Weights:
    return Weights(kind="directory", location=str(folder), engine_path="/opt/ml/model/target")


HUB = Weights(kind="hub", location=REPO, engine_path=REPO)


class Hub(FakeHub):
    """The fake hub, with the commit of its branch and gated models."""

    closed: dict[str, object] = {}

    def _hub(self, request: WebRequest) -> Reply:
        path = urlsplit(request.path).path
        if path == f"/api/models/{REPO}/revision/main":
            output = {"sha": PINNED, "gated": False, "private": False, **self.closed}
            return Reply(200, json.dumps(output).encode())
        return super()._hub(replace(request, path=request.path.replace(PINNED, COMMIT)))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub = Hub()
    hub.files = {**MODEL, **NOT_READ, "original/model.safetensors": b"again"}
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        yield hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    (made / "original").mkdir(parents=True)
    for name, content in (MODEL | NOT_READ).items():
        (made / name).write_bytes(content)
    (made / "original" / "model.safetensors").write_bytes(b"again")
    return made


def no_aws() -> None:
    raise AssertionError("AWS gets no request")


def test_a_folder_contributes_the_files_that_sync_copies(folder: Path) -> None:
    (content,) = baked(plan_with(directory(folder)))
    assert isinstance(content, Copied)
    synced = open_source(directory(folder), no_aws)  # type: ignore[arg-type]
    assert set(content.files) == set(synced.files) == set(MODEL)
    assert {m.path for m in members(content)} == {f"weights/model/target/{name}" for name in MODEL}


@pytest.mark.thorough
def test_hub_files_are_those_that_sync_copies_at_the_current_commit(hub: Hub) -> None:
    (content,) = baked(plan_with(HUB))
    synced = open_source(HUB, no_aws)  # type: ignore[arg-type]
    assert content == Download(REPO, "main", PINNED, tuple(sorted(MODEL)))
    assert set(synced.files) == set(MODEL)


@pytest.mark.thorough
def test_the_vocabulary_of_gpt_oss_goes_into_the_image(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub.files["config.json"] = json.dumps(json.loads(CONFIG) | {"model_type": "gpt_oss"}).encode()
    content = b"aGVsbG8= 0\n"
    monkeypatch.setattr(files, "VOCABULARY_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setenv(VOCABULARY_VARIABLE, str(tmp_path))
    plan, said = plan_with(HUB), list[str]()
    (alone,) = baked(plan, said.append)
    assert VOCABULARY_FILE in said[-1]
    (tmp_path / VOCABULARY_FILE).write_bytes(content)
    weights, vocabulary = baked(plan)
    assert weights == alone
    assert isinstance(vocabulary, Copied)
    (member,) = members(vocabulary)
    assert member.path == f"weights/vocabulary/{VOCABULARY_FILE}"
    text = dockerfile(plan, Recipe("gpu", "base:1", None, weights=(weights, vocabulary)))
    assert f'{VOCABULARY_VARIABLE}="{BAKED_ROOT}/vocabulary"' in text
    assert f"COPY weights {BAKED_ROOT}" in text
    without = dockerfile(plan, Recipe("gpu", "base:1", None, weights=(weights,)))
    assert VOCABULARY_VARIABLE not in without


@pytest.mark.parametrize("closed", [{"gated": "auto"}, {"gated": "manual"}, {"private": True}])
def test_a_gated_model_is_refused_before_anything_is_built(
    hub: Hub, closed: dict[str, object]
) -> None:
    hub.closed = closed
    with pytest.raises(Unsupported) as refused:
        baked(plan_with(HUB))
    assert refused.value.command[:3] == ("peagle", "weights", "sync")


def test_weights_in_s3_cannot_be_baked() -> None:
    there = Weights(kind="s3", location="s3://models/a/", engine_path="/opt/ml/model")
    with pytest.raises(Unsupported) as refused:
        baked(plan_with(there))
    assert "s3://models/a/" in refused.value.message
    assert "--bake-weights" in refused.value.fix
