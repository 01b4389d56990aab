"""Sync with a real S3 client: from folders, from another prefix in S3, and from a fake Hub."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from boto3.s3 import transfer

from peagle.aws.client import Aws
from peagle.catalog import load_catalog
from peagle.engine.runner import local_folders
from peagle.errors import (
    CheckpointError,
    CloudError,
    HubFailed,
    NotFound,
    PeagleError,
    UserError,
)
from peagle.planning import Options, make_plan
from peagle.planning.company import Company
from peagle.planning.plan import Weights
from peagle.weights.bucket import copied_pair
from peagle.weights.inspect import inspect_weights, remove_weights
from peagle.weights.layout import weights_prefix
from peagle.weights.sync import SyncProgress, sync_weights, with_local_weights
from peagle_serve.contract import InvalidEnvironment
from peagle_serve.weights import check_mounted_weights
from tests.support import raises_code
from tests.unit.aws.cloud import service_error
from tests.unit.aws.syncing import (
    CONFIG,
    NAME,
    PART,
    PLACE,
    Calls,
    apply,
    folder_weights,
    keys,
    manifest,
    plan_for,
    put,
    shard,
    stored,
    sync,
    unfinished,
    use_small_parts,
    write_model,
)
from tests.unit.checkpoints.fake_hub import COMMIT, REPO, FakeHub, refused, running
from tests.unit.checkpoints.web import Reply, WebRequest

pytestmark = pytest.mark.thorough

LARGE = 4 * PART
MODEL = "pair/target/model.safetensors"
OURS = {PLACE.manifest_key}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A model whose weights are uploaded in five parts."""
    return write_model(tmp_path / "target", LARGE)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return write_model(tmp_path / "drafter", 2000, seed=1)


@pytest.fixture
def calls(aws: Aws) -> Iterator[Calls]:
    calls = Calls(aws)
    yield calls
    calls.forget()  # the client stays


def test_a_pair_has_two_folders_at_one_prefix(aws: Aws, target: Path, drafter: Path) -> None:
    outcome = sync(aws, target=folder_weights(target), drafter=folder_weights(drafter))
    names = ("config.json", "model.safetensors", "tokenizer.json")
    folders = {f"pair/{part}/{name}" for part in ("target", "drafter") for name in names}
    assert keys(aws) == {*folders, "pair/peagle-weights.json"}
    for folder in (target, drafter):
        for name in names:
            assert stored(aws, f"pair/{folder.name}/{name}") == (folder / name).read_bytes()
    assert outcome.moved == sum(f.stat().st_size for d in (target, drafter) for f in d.iterdir())
    assert unfinished(aws) == []
    assert copied_pair(aws, PLACE.part_uri("drafter").rstrip("/")) == NAME
    for other in (PLACE.part_uri("target"), PLACE.uri, "s3://no-bucket/drafter/"):
        assert copied_pair(aws, other) == ""


def test_s3_checks_every_part_and_what_is_there_is_not_sent_again(
    aws: Aws, target: Path, calls: Calls
) -> None:
    sync(aws, target=folder_weights(target))
    assert calls.count("upload_part") == 5
    sent = [(params["Key"], params.get("ChecksumAlgorithm")) for operation, params in calls.made
            if operation in ("put_object", "upload_part")]  # fmt: skip
    assert {algorithm for key, algorithm in sent if key not in OURS} == {"SHA256"}
    files = manifest(aws)["folders"]["target"]["files"]
    assert all(entry["checksum"].startswith("SHA256:") for entry in files.values())
    calls.made.clear()
    assert sync(aws, target=folder_weights(target)).moved == 0
    assert calls.keys("put_object").count(PLACE.manifest_key) == 2
    assert set(calls.keys("put_object")) == OURS
    assert calls.count("upload_part", "create_multipart_upload") == 0


def test_other_bytes_of_the_same_size_are_replaced(aws: Aws, target: Path) -> None:
    weights = target / "model.safetensors"
    put(aws, MODEL, bytes(weights.stat().st_size))  # without our metadata, it is not trusted
    sync(aws, target=folder_weights(target))
    assert stored(aws, MODEL) == weights.read_bytes()
    weights.write_bytes(shard("w", LARGE, seed=7))
    (target / "tokenizer.json").write_bytes(b"[]")
    outcome = sync(aws, target=folder_weights(target))
    for name in ("model.safetensors", "tokenizer.json"):
        assert stored(aws, f"pair/target/{name}") == (target / name).read_bytes()
    assert outcome.moved == weights.stat().st_size + 2


def test_weights_in_s3_are_downloaded_once_for_an_engine_of_this_machine(
    aws: Aws, target: Path, drafter: Path, calls: Calls, own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    sync(aws, target=folder_weights(target), drafter=folder_weights(drafter))
    place = {part: PLACE.part_uri(part) for part in ("target", "drafter")}
    options = Options(pair="tiny", model_source=place["target"], drafter=place["drafter"])
    plan = make_plan(options, load_catalog())
    seen: list[int] = []

    def folders() -> list[Path]:
        local = with_local_weights(lambda: aws, plan, lambda progress: seen.append(progress.total))
        assert local.environment == plan.environment
        mounted = local_folders(local)
        assert {*mounted} == {"/opt/ml/model/target", "/opt/ml/model/drafter"}
        return [mounted[f"/opt/ml/model/{part}"] for part in ("target", "drafter")]

    def fail(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "get_object" and parameters.get("Range", "").startswith(f"bytes={PART}-"):
            raise CloudError("S3 is away", code="away")

    calls.before = fail
    with raises_code("away", CloudError):
        folders()
    there = {f"pair/target/{file.name}" for file in own_home.glob("weights/*/*.json")}
    calls.forget()
    first = folders()
    downloaded = {params["Key"] for _, params in calls.made if "IfMatch" in params}
    assert there.isdisjoint(downloaded)
    assert MODEL in downloaded
    for original, folder in zip((target, drafter), first, strict=True):
        assert sorted(file.name for file in folder.iterdir()) == sorted(os.listdir(original))
        for file in original.iterdir():
            assert (folder / file.name).read_bytes() == file.read_bytes()
    (first[0] / "model.safetensors.0a1B2c3D").write_bytes(b"of a download that was killed")
    seen.clear()
    assert folders() == first
    assert (seen, len([*first[0].iterdir()])) == ([], 3)
    put(aws, "pair/target/tokenizer.json", b"[]")
    changed = folders()
    assert (changed[0] != first[0], changed[1]) == (True, first[1])
    put(aws, "pair/drafter/tokenizer.json", b"[1]")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10))
    with raises_code("disk-full", UserError):
        folders()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_an_object_that_changes_during_a_download_is_an_error(
    aws: Aws, target: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sync(aws, target=folder_weights(target))
    # Part by part: moto closes an object that is replaced, also while others read its parts.
    monkeypatch.setattr(
        transfer, "TransferConfig", partial(transfer.TransferConfig, use_threads=False)
    )

    def change(operation: str, parameters: dict[str, Any]) -> None:
        if "IfMatch" in parameters and parameters["Key"] == f"pair/target/{name}":
            calls.forget()
            put(aws, parameters["Key"], shard("w", LARGE, seed=7))

    calls.before = change
    plan = make_plan(
        Options(pair="tiny", speculation=False, model_source=PLACE.part_uri("target")),
        load_catalog(),
    )
    with raises_code("source-changed", CheckpointError):
        with_local_weights(lambda: aws, plan, lambda progress: None)


def test_a_failed_sync_keeps_the_finished_files_and_no_parts(
    aws: Aws, target: Path, calls: Calls
) -> None:
    def fail(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "upload_part" and parameters["PartNumber"] == 3:
            raise CloudError("S3 is away", code="away")

    calls.before = fail
    with raises_code("away", CloudError):
        sync(aws, target=folder_weights(target))
    assert unfinished(aws) == []
    assert {"pair/target/config.json", "pair/target/tokenizer.json"} <= keys(aws)
    assert manifest(aws)["folders"]["target"]["complete"] is False
    calls.forget()
    outcome = sync(aws, target=folder_weights(target))
    assert outcome.moved == (target / "model.safetensors").stat().st_size
    assert set(calls.keys("put_object")) == OURS
    assert stored(aws, MODEL) == (target / "model.safetensors").read_bytes()
    assert manifest(aws)["folders"]["target"]["complete"] is True


def test_an_interrupt_ends_the_sync(aws: Aws, target: Path) -> None:
    def interrupt(progress: SyncProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync_weights(aws, plan_for(aws, target=folder_weights(target)), interrupt)
    assert unfinished(aws) == []
    assert manifest(aws)["folders"]["target"]["complete"] is False
    sync(aws, target=folder_weights(target))
    assert inspect_weights(aws, PLACE).complete


def test_what_a_killed_sync_left_is_listed_and_the_next_one_ends_it(aws: Aws, target: Path) -> None:
    with pytest.raises(NotFound):
        inspect_weights(aws, PLACE)
    sync(aws, target=folder_weights(target))
    aws.call("s3", "delete_object", Bucket="models", Key=MODEL)
    begun = {"Bucket": "models", "Key": MODEL}
    upload = aws.call("s3", "create_multipart_upload", **begun)["UploadId"]
    aws.call("s3", "upload_part", **begun, UploadId=upload, PartNumber=1, Body=b"x" * PART)
    partial = inspect_weights(aws, PLACE)
    files = {file.name: (file.state, file.bytes_there) for file in partial.files["target"]}
    assert files["model.safetensors"] == ("missing", 0)
    assert not partial.complete
    assert partial.finish[1:] == ("weights", "sync", NAME, PLACE.uri, "--target-only")
    sync(aws, target=folder_weights(target))
    assert unfinished(aws) == []
    assert stored(aws, MODEL) == (target / "model.safetensors").read_bytes()
    assert inspect_weights(aws, PLACE).finish == ()


@pytest.mark.parametrize(("key", "level", "code"), [
    ("pair/target/old.safetensors", "error", "foreign-objects"),
    ("pair/target/config.json", "warning", "objects-are-replaced"),
    (None, "warning", "other-weights-there"),
])  # fmt: skip
def test_what_is_at_the_prefix_is_found_before_any_write(
    aws: Aws, target: Path, tmp_path: Path, key: str | None, level: str, code: str
) -> None:
    if key is None:
        sync(aws, target=folder_weights(write_model(tmp_path / "earlier", LARGE)))
    else:
        put(aws, key, b"{}")
    (finding,) = plan_for(aws, target=folder_weights(target)).findings
    assert (finding.level, finding.code) == (level, code)


def test_a_new_bucket_is_tagged_and_what_is_written_is_encrypted_with_the_key(
    aws: Aws, target: Path, drafter: Path
) -> None:
    company = Company(kms_key="alias/models", tags={"team": "ml"})
    weights = {"target": folder_weights(target), "drafter": folder_weights(drafter)}
    plan = plan_for(aws, weights_prefix("s3://new-models/pair"), **weights)
    assert plan.creates_bucket
    apply(aws, plan, company=company)
    assert "pair/drafter/config.json" in keys(aws, "new-models")
    for key in keys(aws, "new-models"):
        head = aws.call("s3", "head_object", Bucket="new-models", Key=key)
        assert head["ServerSideEncryption"] == "aws:kms", key
        assert head["SSEKMSKeyId"].endswith("alias/models")
    tags = aws.call("s3", "get_bucket_tagging", Bucket="new-models")["TagSet"]
    assert {"Key": "team", "Value": "ml"} in tags


def put_warm_start(aws: Aws, key: str, device: Any, archive: int = 3) -> None:
    """Store a warm start with ``archive`` of the three bytes that the manifest names."""
    document = {"format": 1, "key": key, "size": 3, "subject": {"device": device}}
    put(aws, f"pair/warm/{key}.tar.gz", b"x" * archive)
    put(aws, f"pair/warm/{key}.json", json.dumps(document).encode())


def test_warm_starts_are_listed_and_removed_with_the_weights(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    gpus = {"gpus": ["NVIDIA H200 (9.0)"] * 8, "used": 4, "driver": "580"}
    put_warm_start(aws, "a" * 32, gpus)
    put_warm_start(aws, "b" * 32, {"cpu": "AMD EPYC 9R14", "instructions": "0f" * 32}, archive=2)
    put(aws, f"pair/warm/{'c' * 32}.json", b"{")
    weights = inspect_weights(aws, PLACE)
    assert [(warm.key[0], warm.device, warm.complete) for warm in weights.warm] == [
        ("a", "4 x NVIDIA H200 (9.0), driver 580", True),
        ("b", "AMD EPYC 9R14", False),
        ("c", None, False),
    ]
    assert weights.complete
    assert weights.others == {}
    listed = aws.items("s3", "list_objects_v2", "Contents", Bucket="models")
    size = sum(entry["Size"] for entry in listed)
    assert weights.size == size - len(stored(aws, PLACE.manifest_key))
    put(aws, "pair/mine.txt", b"!")
    remove_weights(aws, inspect_weights(aws, PLACE))
    assert keys(aws) == {"pair/mine.txt"}


def test_changes_of_others_are_listed(aws: Aws, target: Path) -> None:
    sync(aws, target=folder_weights(target))
    put(aws, "pair/target/config.json", b"{}")
    put(aws, "pair/mine.txt", b"!")
    damaged = inspect_weights(aws, PLACE)
    assert {file.state for file in damaged.files["target"]} == {"differs", "whole"}
    assert damaged.others == {"pair/mine.txt": 1}
    assert not damaged.complete


# From another prefix: S3 copies, and no weight file passes through this machine.

THEIRS = Weights(kind="s3", location="s3://theirs/head/", engine_path="")
ORIGINAL = shard("w", 17 * PART // 5)


@pytest.fixture
def theirs(aws: Aws) -> Weights:
    aws.call("s3", "create_bucket", Bucket="theirs")
    files = {"config.json": CONFIG, "model.safetensors": ORIGINAL, "notes.txt.bak": b"x",
             "original/model.safetensors": b"another copy"}  # fmt: skip
    for key, content in files.items():
        put(aws, f"head/{key}", content, "theirs")
    return THEIRS


def test_s3_copies_once_and_only_headers_are_read(aws: Aws, theirs: Weights, calls: Calls) -> None:
    read: list[str] = []

    def note(operation: str, parameters: dict[str, Any]) -> None:
        if operation == "get_object" and "Range" not in parameters:
            read.append(parameters["Key"])

    calls.before = note
    sync(aws, target=theirs)
    assert set(read) <= OURS
    assert calls.count("upload_part") == 0
    assert calls.count("upload_part_copy") == 4
    assert set(calls.keys("put_object")) == OURS
    assert stored(aws, MODEL) == ORIGINAL
    assert unfinished(aws) == []
    calls.forget()
    assert sync(aws, target=theirs).moved == 0
    assert calls.count("upload_part_copy", "copy_object", "create_multipart_upload") == 0


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("change", ["planned before", "deleted", "replaced"])
def test_an_original_that_changes_is_detected(
    aws: Aws, calls: Calls, theirs: Weights, name: str, change: str
) -> None:
    plan = plan_for(aws, target=theirs)

    def meanwhile(operation: str, parameters: dict[str, Any]) -> None:
        if operation in ("copy_object", "upload_part_copy") and parameters["Key"].endswith(name):
            if change == "replaced":  # S3 compares the ETag that is asked for, moto does not
                assert parameters["CopySourceIfMatch"]
                raise service_error("PreconditionFailed", "the ETag differs", "CopyObject")
            calls.forget()
            aws.call("s3", "delete_object", Bucket="theirs", Key=f"head/{name}")

    if change == "planned before":
        put(aws, f"head/{name}", b"{}", "theirs")
    else:
        calls.before = meanwhile
    with raises_code("source-changed", CheckpointError):
        apply(aws, plan)


def test_what_a_sync_records_passes_the_containers_check(
    aws: Aws, tmp_path: Path, theirs: Weights
) -> None:
    weights = folder_weights(write_model(tmp_path / "own", 17 * PART // 5))
    sync(aws, target=theirs, drafter=weights)
    mounted = tmp_path / "ml" / "model"
    for key in keys(aws):
        file = mounted / key.removeprefix("pair/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(stored(aws, key))
    target = str(mounted / "target")
    environment = {"PEAGLE_ML_ROOT": str(tmp_path / "ml"), "SM_VLLM_MODEL": target}
    manifest = (mounted / "peagle-weights.json").read_bytes()
    environment["PEAGLE_WEIGHTS_SHA256"] = hashlib.sha256(manifest).hexdigest()
    check_mounted_weights(environment)
    file = mounted / "target" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InvalidEnvironment, match="differs from its manifest"):
        check_mounted_weights(environment)


# From the Hub.

PINNED = COMMIT + "0" * (40 - len(COMMIT))
ON_HUB = shard("w", 12 * PART // 5)


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
            is_branch = path.rpartition("/")[2] in ("main", "v1")
            return Reply(200, json.dumps({"sha": PINNED}).encode()) if is_branch else refused(
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
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("TRANSFORMERS_OFFLINE", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    hub = Hub()
    hub.token = "hf_a-secret"
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr("peagle.weights.sync.sleep", hub.waits.append)
    hub.files = {
        "config.json": CONFIG,
        "model.safetensors": ON_HUB,
        "tokenizer.json": b'{"model": {"vocab": {"a": 0}}}' + b" " * 2000,
        "pytorch_model.bin": b"a duplicate" * 1000,
    }
    with running(hub):
        monkeypatch.setenv("HF_ENDPOINT", hub.hub.url)
        yield hub


def on_hub(revision: str | None = None) -> Weights:
    return Weights(kind="hub", location=REPO, revision=revision, engine_path=REPO)


def test_files_that_vllm_reads_are_copied_from_one_commit(aws: Aws, hub: Hub) -> None:
    hub.failures = 3  # which are tried again
    sync(aws, target=on_hub())
    assert len(hub.waits) == 3
    names = {"config.json", "model.safetensors", "tokenizer.json"}
    assert keys(aws) == {*(f"pair/target/{name}" for name in names), PLACE.manifest_key}
    assert stored(aws, MODEL) == ON_HUB
    assert not [request for request in hub.requests if "pytorch_model" in request.path]
    folder = manifest(aws)["folders"]["target"]
    assert folder["source"] == f"{REPO}@{PINNED}"
    assert folder["files"]["model.safetensors"]["sha256"] == hashlib.sha256(ON_HUB).hexdigest()
    files = [request.path for request in hub.hub.requests if "/resolve/" in request.path]
    assert files
    assert all(f"/resolve/{PINNED}/" in path for path in files)
    # The token goes to the Hub only.
    assert not [request for request in hub.store.requests if "Authorization" in request.headers]
    assert "hf_a-secret" not in json.dumps(manifest(aws))
    hub.store.forget()
    hub.hub.forget()
    # The second run trusts the Hub's checksums without downloading.
    assert sync(aws, target=on_hub()).moved == 0
    assert hub.sent < PART


@pytest.mark.parametrize(("revision", "state", "code", "kind"), [
    ("nowhere", {}, "hub-no-revision", CheckpointError),
    (None, {"failures": 1000}, "hub-failed", HubFailed),
    (None, {"spoilt": True}, "checksum-mismatch", CheckpointError),
])  # fmt: skip
def test_a_failure_of_the_hub_leaves_no_object(
    aws: Aws, hub: Hub, revision: str | None, state: Any, code: str, kind: type[PeagleError]
) -> None:
    vars(hub).update(state)
    with raises_code(code, kind):
        sync(aws, target=on_hub(revision))
    assert MODEL not in keys(aws)
    assert unfinished(aws) == []
    vars(hub).update(failures=0, spoilt=False)
    sync(aws, target=on_hub())
    assert stored(aws, MODEL) == ON_HUB


def test_a_small_file_is_checked_by_its_git_id(aws: Aws, hub: Hub) -> None:
    plan = plan_for(aws, target=on_hub("main"))
    hub.files["config.json"] = CONFIG.replace(b"4", b"5")
    with raises_code("checksum-mismatch", CheckpointError) as caught:
        apply(aws, plan)
    assert "config.json" in caught.value.message
    assert "pair/target/config.json" not in keys(aws)
