"""Sync from a fake hub on loopback: commits, checksums, failures."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from peagle.aws.client import Aws
from peagle.errors import CheckpointError, HubFailed
from peagle.planning.plan import Weights
from peagle.weights.sync import SyncResult
from tests.support import raises_code
from tests.unit.aws.syncing import (
    CONFIG,
    PART,
    PLACE,
    apply,
    keys,
    manifest,
    plan_for,
    shard,
    stored,
    sync,
    unfinished,
    use_small_parts,
)
from tests.unit.checkpoints.fake_hub import COMMIT, REPO, FakeHub, refused, running
from tests.unit.checkpoints.web import Reply, WebRequest

PINNED = COMMIT + "0" * (40 - len(COMMIT))
WEIGHTS = shard("w", 12 * PART // 5)
TOKENIZER = b'{"model": {"vocab": {"a": 0}}}' + b" " * 2000


class Hub(FakeHub):
    """The fake hub with commits of branches and failures on request."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.waits: list[float] = []
        self.spoilt = False

    def _hub(self, request: WebRequest) -> Reply:
        path = urlsplit(request.path).path
        if path.startswith(f"/api/models/{REPO}/revision/"):
            known = path.rpartition("/")[2] in ("main", "v1")
            return Reply(200, json.dumps({"sha": PINNED}).encode()) if known else refused(
                404, "RevisionNotFound")  # fmt: skip
        return super()._hub(replace(request, path=request.path.replace(PINNED, COMMIT)))

    def _file(self, request: WebRequest) -> Reply:
        first, _ = request.range_of(PART)
        if first and self.failures:
            self.failures -= 1
            return Reply(503)
        reply = super()._file(request)
        if self.spoilt and first:
            return replace(reply, body=b"\0" * int(reply.length or 0))
        return reply


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    use_small_parts(monkeypatch)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub = Hub()
    monkeypatch.setattr("peagle.weights.sources.sleep", hub.waits.append)
    hub.files = {
        "config.json": CONFIG,
        "model.safetensors": WEIGHTS,
        "tokenizer.json": TOKENIZER,
        "pytorch_model.bin": b"a duplicate" * 1000,
    }
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        yield hub


def bring(aws: Aws, revision: str | None = None) -> SyncResult:
    weights = Weights(kind="hub", location=REPO, revision=revision, engine_path=REPO)
    return sync(aws, target=weights)


@pytest.mark.thorough
def test_a_branch_is_pinned_to_its_commit(aws: Aws, hub: Hub) -> None:
    bring(aws)

    assert manifest(aws)["folders"]["target"]["source"] == f"{REPO}@{PINNED}"
    files = [request.path for request in hub.hub.requests if "/resolve/" in request.path]
    assert files
    assert all(f"/resolve/{PINNED}/" in path for path in files)


def test_an_unknown_revision_is_an_error(aws: Aws, hub: Hub) -> None:
    with raises_code("hub-no-revision", CheckpointError):
        bring(aws, "nowhere")


@pytest.mark.thorough
def test_files_that_vllm_reads_are_copied_and_duplicates_are_not(aws: Aws, hub: Hub) -> None:
    bring(aws)

    names = {"config.json", "model.safetensors", "tokenizer.json"}
    assert keys(aws) == {*(f"pair/target/{name}" for name in names), PLACE.manifest_key}
    assert stored(aws, "pair/target/model.safetensors") == WEIGHTS
    assert not [request for request in hub.requests if "pytorch_model" in request.path]
    entry = manifest(aws)["folders"]["target"]["files"]["model.safetensors"]
    assert entry["sha256"] == hashlib.sha256(WEIGHTS).hexdigest()


@pytest.mark.thorough
def test_the_second_run_trusts_the_hubs_checksums_without_downloading(aws: Aws, hub: Hub) -> None:
    bring(aws)
    hub.store.forget()
    hub.hub.forget()

    assert bring(aws).moved == 0

    assert hub.sent < PART


@pytest.mark.thorough
def test_the_token_is_sent_to_the_hub_only(
    aws: Aws, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_a-secret"
    monkeypatch.setenv("HF_TOKEN", hub.token)

    bring(aws)

    assert not [request for request in hub.store.requests if "Authorization" in request.headers]
    assert hub.token not in json.dumps(manifest(aws))


@pytest.mark.thorough
def test_a_network_that_fails_is_tried_again(aws: Aws, hub: Hub) -> None:
    hub.failures = 3

    bring(aws)

    assert len(hub.waits) == 3
    assert stored(aws, "pair/target/model.safetensors") == WEIGHTS


@pytest.mark.thorough
def test_a_lasting_network_failure_ends_the_run(aws: Aws, hub: Hub) -> None:
    hub.failures = 1000

    with raises_code("hub-failed", HubFailed):
        bring(aws)

    assert unfinished(aws) == []
    hub.failures = 0
    bring(aws)
    assert stored(aws, "pair/target/model.safetensors") == WEIGHTS


@pytest.mark.thorough
def test_bytes_other_than_the_hubs_never_become_an_object(aws: Aws, hub: Hub) -> None:
    hub.spoilt = True

    with raises_code("checksum-mismatch", CheckpointError) as caught:
        bring(aws)

    assert "model.safetensors" in caught.value.message
    assert "pair/target/model.safetensors" not in keys(aws)
    assert unfinished(aws) == []


@pytest.mark.thorough
def test_a_small_file_is_checked_by_its_git_id(aws: Aws, hub: Hub) -> None:
    weights = Weights(kind="hub", location=REPO, revision="main", engine_path=REPO)
    planned = plan_for(aws, target=weights)
    hub.files["config.json"] = CONFIG.replace(b"4", b"5")

    with raises_code("checksum-mismatch", CheckpointError) as caught:
        apply(aws, planned)

    assert "config.json" in caught.value.message
    assert "pair/target/config.json" not in keys(aws)
