"""``peagle weights``: shown first, asked, copied, and used by ``peagle plan``."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.sandboxes import Account, Sandbox
from tests.unit.cli.endpoints import deployed

BUCKET = "models"
pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def account(sandbox: Sandbox) -> Account:
    account = Account(sandbox)
    account.s3.create_bucket(Bucket=BUCKET)
    return account


def _sync(sandbox: Sandbox, prefix: str, *more: str) -> subprocess.CompletedProcess[str]:
    return sandbox.peagle("weights", "sync", "tiny", f"s3://{BUCKET}/{prefix}", "--sandbox", *more)


def _keys(account: Account, prefix: str) -> set[str]:
    found = account.s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", ())
    return {entry["Key"].removeprefix(f"{prefix}/") for entry in found}


def test_a_pair_is_copied_and_the_plan_that_uses_it_has_one_mount(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    done = _sync(sandbox, "tiny", "--yes")
    assert done.returncode == 0, done.stderr
    weights = {f"{part}/model.safetensors" for part in ("target", "drafter")}
    assert {*weights, "peagle-weights.json"} <= _keys(account, "tiny")
    (*_, last) = re.findall(r"Copying \| (\S+) of (\S+) MB", done.stderr)
    assert last[0] == last[1], "without a terminal, too, progress comes to its end"
    use = re.search(r"Use it: peagle (plan .*)", done.stderr)
    assert use is not None
    plan = tmp_path / "plan.json"
    document = sandbox.json(*shlex.split(use[1]), "--out", str(plan))
    assert document["mounts"] == [{"channel": None, "s3_uri": "s3://models/tiny/"}]
    environment = document["environment"]
    assert environment["SM_VLLM_MODEL"] == "/opt/ml/model/target"
    assert '"model":"/opt/ml/model/drafter"' in environment["SM_VLLM_SPECULATIVE_CONFIG"]
    for form in ("cloudformation", "terraform"):
        rendered = sandbox.peagle("render", form, str(plan), "-o", str(tmp_path / form))
        assert rendered.returncode == 0, rendered.stderr


def test_remove_deletes_only_what_sync_stored(sandbox: Sandbox, account: Account) -> None:
    _sync(sandbox, "removed", "--yes")
    account.s3.put_object(Bucket=BUCKET, Key="removed/mine.txt", Body=b"mine")
    begun = account.s3.create_multipart_upload(
        Bucket=BUCKET, Key="removed/target/model.safetensors"
    )
    remove = ("weights", "remove", "s3://models/removed", "--sandbox")
    asked = sandbox.peagle(*remove)
    done = sandbox.peagle(*remove, "--yes")
    again = sandbox.peagle(*remove, "--yes")
    assert asked.returncode == 2
    assert done.returncode == 0, done.stderr
    assert _keys(account, "removed") == {"mine.txt"}
    uploads = account.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ())
    assert begun["UploadId"] not in [upload["UploadId"] for upload in uploads]
    assert again.returncode == 2
    assert "no weights were synced to s3://models/removed/" in again.stderr


def _put_warm(account: Account, prefix: str, key: str, **manifest: Any) -> None:
    """A warm start with that manifest."""
    for name, body in {"json": json.dumps(manifest).encode(), "tar.gz": b"code"}.items():
        account.s3.put_object(Bucket=BUCKET, Key=f"{prefix}/warm/{key}.{name}", Body=body)


def _of_tiny(account: Account, prefix: str, k: int) -> dict[str, Any]:
    """What the subject of a warm start of the pair at the prefix says."""
    bodies = {
        part: account.s3.get_object(Bucket=BUCKET, Key=f"{prefix}/{part}/config.json")["Body"]
        for part in ("target", "drafter")
    }
    return {
        "device": {"gpus": ["NVIDIA L40S (8.9)"], "driver": "580"},
        "engine": {"SM_VLLM_SPECULATIVE_CONFIG": json.dumps({"num_speculative_tokens": k})},
        "pair": {part: hashlib.sha256(body.read()).hexdigest() for part, body in bodies.items()},
    }


def test_warm_starts_are_listed_with_their_pair_and_removed_with_the_weights(
    sandbox: Sandbox, account: Account
) -> None:
    _sync(sandbox, "warm", "--yes")
    subject = _of_tiny(account, "warm", 5)
    known = {"size": 4, "made": "2026-11-20T11:34:26Z", "seconds_cold": 131.6}
    _put_warm(account, "warm", "0a" * 16, subject=subject, **known)
    other = {**subject, "pair": {"target": "0" * 64, "drafter": None}, "engine": {}}
    _put_warm(account, "warm", "0b" * 16, subject=other, size=5)
    listed = sandbox.peagle("weights", "list", "s3://models/warm", "--sandbox")
    reported = sandbox.json("weights", "list", "s3://models/warm", "--sandbox")["warm"]
    removed = sandbox.peagle("weights", "remove", "s3://models/warm", "--sandbox", "--yes")
    assert listed.returncode == 0, "a start that finds an incomplete artifact compiles again"
    assert "s3://models/warm/: complete" in listed.stdout
    assert re.search(r"(0a){16} +yes +\d+ +peagle/tiny\+p-eagle +5 ", listed.stdout)
    assert re.search(r"(0b){16} +no +\d+ +- +0 +1 x NVIDIA L40S", listed.stdout)
    assert (reported[0]["pair"], reported[0]["k"]) == ("peagle/tiny+p-eagle", 5)
    assert (reported[0]["made"], reported[0]["seconds_cold"]) == (
        known["made"],
        known["seconds_cold"],
    )
    assert (reported[1]["pair"], reported[1]["k"], reported[1]["complete"]) == (None, 0, False)
    assert "and 2 warm starts from" in removed.stderr
    assert _keys(account, "warm") == set()


def test_weights_of_an_endpoint_are_replaced_only_with_the_option(
    sandbox: Sandbox, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sync(sandbox, "served", "--yes")
    head = account.s3.get_object(Bucket=BUCKET, Key="served/drafter/config.json")["Body"].read()
    monkeypatch.setenv("PEAGLE_HOME", sandbox.environment["PEAGLE_HOME"])
    deployed("s3://models/served/", name="peagle-served")
    other = ("weights", "sync", "tiny+eagle3", "s3://models/served", "--sandbox", "--yes")
    refused = sandbox.peagle(*other)
    kept = account.s3.get_object(Bucket=BUCKET, Key="served/drafter/config.json")["Body"].read()
    account.s3.delete_object(Bucket=BUCKET, Key="served/target/config.json")
    same = _sync(sandbox, "served", "--yes")
    replaced = sandbox.peagle(*other, "--even-if-used")
    assert refused.returncode == 3
    assert "peagle destroy peagle-served" in refused.stderr
    assert "--even-if-used" in refused.stderr.splitlines()[-1]
    assert "Copying" not in refused.stderr
    assert kept == head
    assert same.returncode == 0, same.stderr
    assert replaced.returncode == 0, replaced.stderr
    left = account.s3.get_object(Bucket=BUCKET, Key="served/drafter/config.json")["Body"].read()
    assert left != head
