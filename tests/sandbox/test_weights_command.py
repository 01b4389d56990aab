"""``peagle weights``: shown first, asked, copied, and used by ``peagle plan``."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from peagle.data import data_folder
from tests import forked
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
    assert "per month on AWS (free in the sandbox)" in done.stderr
    assert "s3://models/tiny/ is complete" in done.stderr
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


def test_json_is_one_document_and_nothing_else(sandbox: Sandbox, account: Account) -> None:
    document = sandbox.json("weights", "sync", "tiny", "s3://models/json", "--sandbox", "--yes")
    again = sandbox.json("weights", "sync", "tiny", "s3://models/json", "--sandbox", "--yes")

    assert document["bytes"] == document["bytes_moved"] > 10_000_000
    assert again["bytes_moved"] == 0
    assert document["folders"]["drafter"]["uri"] == "s3://models/json/drafter/"
    assert document["next"].startswith("peagle plan tiny --model-source s3://models/json/target/")
    assert document["next"].endswith(" --online --sandbox")


def test_without_a_terminal_and_without_yes_nothing_is_copied(
    sandbox: Sandbox, account: Account
) -> None:
    done = _sync(sandbox, "asked")

    assert done.returncode == 2
    assert "target   catalog:peagle/tiny/target: 7 files, 9.2 MB -> target/" in done.stderr
    assert "pass --yes" in done.stderr
    assert _keys(account, "asked") == set()


def test_a_foreign_object_is_refused_and_nothing_is_copied(
    sandbox: Sandbox, account: Account
) -> None:
    account.s3.put_object(Bucket=BUCKET, Key="foreign/target/other.safetensors", Body=b"x")

    done = _sync(sandbox, "foreign", "--yes")

    assert done.returncode == 3
    assert "which every start would download too" in done.stderr
    assert _keys(account, "foreign") == {"target/other.safetensors"}


def test_only_one_folder_is_copied(sandbox: Sandbox, account: Account) -> None:
    done = _sync(sandbox, "half", "--drafter-only", "--yes")

    assert done.returncode == 0, done.stderr
    assert {name.partition("/")[0] for name in _keys(account, "half")} == {
        "drafter", "peagle-weights.json"
    }  # fmt: skip
    assert "Use it: peagle plan tiny --drafter s3://models/half/drafter/" in done.stderr


def test_the_users_head_replaces_one_that_is_not_public(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    head = data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle"
    to = "s3://models/own"
    words = ("weights", "sync", "gemma-4-31b", to, "--drafter-only", "--sandbox", "--yes")

    own = sandbox.json(*words, "--drafter-from", str(head))

    assert own["folders"]["drafter"]["source"] == str(head.resolve())
    next_command = f"peagle plan gemma-4-31b --drafter {to}/drafter/ --online --sandbox"
    assert own["next"] == next_command


def test_list_shows_what_is_stored(sandbox: Sandbox, account: Account) -> None:
    _sync(sandbox, "listed", "--yes")
    account.s3.delete_object(Bucket=BUCKET, Key="listed/target/config.json")

    reported = sandbox.peagle("weights", "list", "s3://models/listed", "--sandbox")

    assert reported.returncode == 3, reported.stderr
    assert re.search(r"s3://models/listed/: incomplete, .* MB, \S*tiny\S*\n", reported.stdout)
    assert re.search(r"complete it: peagle weights sync .* s3://models/listed/ .*--sandbox\n",
                     reported.stdout)  # fmt: skip
    assert re.search(r"missing +529 +config\.json", reported.stdout)
    assert re.search(r"complete .*9,191,704 +model\.safetensors +SHA256:", reported.stdout)


def test_folders_that_were_never_synced_are_not_called_incomplete(
    sandbox: Sandbox, account: Account
) -> None:
    account.s3.put_object(Bucket=BUCKET, Key="by-hand/target/config.json", Body=b"{}")
    account.s3.put_object(Bucket=BUCKET, Key="strange/notes.txt", Body=b"x")

    by_hand = sandbox.peagle("weights", "list", "s3://models/by-hand", "--sandbox")
    strange = sandbox.peagle("weights", "list", "s3://models/strange", "--sandbox", "--json")

    assert by_hand.returncode == 0, by_hand.stderr
    assert "s3://models/by-hand/: not synced" in by_hand.stdout
    assert strange.returncode == 3
    assert json.loads(strange.stdout)["complete"] is False


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


def test_a_second_sync_reports_the_lock_holder_and_how_to_take_over(
    sandbox: Sandbox, account: Account
) -> None:
    who = "arn:aws:iam::1:user/anna on build-7 copies peagle/tiny since 14:02 UTC"
    holder = {"id": "a" * 32, "holder": who}
    lock = {"Bucket": BUCKET, "Key": "busy/peagle-weights.lock"}
    account.s3.put_object(**lock, Body=json.dumps(holder).encode())

    refused = _sync(sandbox, "busy", "--yes")

    assert refused.returncode == 3
    assert "arn:aws:iam::1:user/anna on build-7 copies peagle/tiny since" in refused.stderr
    assert "--take-over" in refused.stderr.splitlines()[-1]
    assert "Resume:" not in refused.stderr
    assert _keys(account, "busy") == {"peagle-weights.lock"}
    reported = sandbox.json("weights", "list", "s3://models/busy", "--sandbox")
    assert reported["at_work"].startswith("arn:aws:iam::1:user/anna on build-7")
    taken = _sync(sandbox, "busy", "--yes", "--take-over")
    assert taken.returncode == 0, taken.stderr
    assert "peagle-weights.lock" not in _keys(account, "busy")


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
    facts = "peagle/tiny+p-eagle, K=5, 1 x NVIDIA L40S (8.9), driver 580, 2026-11-20T11:34:26Z, "
    assert f"  {'0a' * 16}  {facts}132 s cold\n" in listed.stdout
    assert re.search(r"partial +\d+  (0b){16}  no speculation, 1 x NVIDIA L40S", listed.stdout)
    assert (reported[0]["pair"], reported[0]["k"]) == ("peagle/tiny+p-eagle", 5)
    assert (reported[0]["made"], reported[0]["seconds_cold"]) == (
        known["made"],
        known["seconds_cold"],
    )
    assert (reported[1]["pair"], reported[1]["k"], reported[1]["complete"]) == (None, 0, False)
    assert "and 2 warm starts from" in removed.stderr
    assert _keys(account, "warm") == set()


def test_a_warm_start_of_the_target_alone_belongs_to_the_pairs_prefix(
    sandbox: Sandbox, account: Account
) -> None:
    _sync(sandbox, "alone", "--yes")
    subject = _of_tiny(account, "alone", 5)
    subject = {**subject, "engine": {}, "pair": {**subject["pair"], "drafter": None}}
    _put_warm(account, "alone/target", "0a" * 16, size=4, subject=subject)

    listed = sandbox.json("weights", "list", "s3://models/alone", "--sandbox")
    sandbox.peagle("weights", "remove", "s3://models/alone", "--sandbox", "--yes")

    assert listed["complete"] is True
    assert [(warm["pair"], warm["k"]) for warm in listed["warm"]] == [("peagle/tiny", 0)]
    assert listed["others"] == {}
    assert _keys(account, "alone") == set()


def test_one_warm_start_is_removed_and_nothing_else(sandbox: Sandbox, account: Account) -> None:
    _sync(sandbox, "one", "--yes")
    weights = _keys(account, "one")
    for key in ("0a" * 16, "0b" * 16):
        _put_warm(account, "one", key, size=4, subject={"device": {"cpu": "Some CPU"}})
    remove = ("weights", "remove", "s3://models/one", "--sandbox", "--warm")

    unknown = sandbox.peagle(*remove, "0c" * 16, "--yes")
    asked = sandbox.peagle(*remove, "0a" * 16)
    mixed = sandbox.peagle(*remove, "0a" * 16, "--even-if-used", "--yes")
    both = {f"warm/{'0b' * 16}.{name}" for name in ("json", "tar.gz")}
    assert _keys(account, "one") == {*weights, *both, *(key.replace("0b", "0a") for key in both)}
    done = sandbox.json(*remove, "0a" * 16, "--yes")

    assert (unknown.returncode, asked.returncode, mixed.returncode) == (2, 2, 2)
    output = (
        f"no warm start {'0c' * 16} at s3://models/one/ "
        f"(its warm starts are {'0a' * 16}, {'0b' * 16})"
    )
    assert output in unknown.stderr
    assert "pass --yes" in asked.stderr
    assert "cannot be combined with --warm" in mixed.stderr
    assert done["warm"] == ["0a" * 16]
    assert done["folders"] == []
    assert _keys(account, "one") == {*weights, *both}
    reported = sandbox.peagle(*remove, "0b" * 16, "--yes")
    assert f"Removed the warm start {'0b' * 16} from s3://models/one/" in reported.stderr
    assert _keys(account, "one") == weights


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
    assert "endpoint peagle-served uses s3://models/served/drafter/" in refused.stderr
    assert "--even-if-used" in refused.stderr.splitlines()[-1]
    assert "Copying" not in refused.stderr
    assert kept == head
    assert same.returncode == 0, same.stderr
    assert replaced.returncode == 0, replaced.stderr
    left = account.s3.get_object(Bucket=BUCKET, Key="served/drafter/config.json")["Body"].read()
    assert left != head


def test_ctrl_c_shows_what_is_stored_and_how_to_continue(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    size = 256 * 1024 * 1024
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "config.json").write_text('{"hidden_size": 4, "vocab_size": 8}')
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    words = ["weights", "sync", "tiny", "s3://models/stopped", "--target-only", "--target-from",
             str(tmp_path), "--sandbox"]  # fmt: skip
    process = forked.start(*words, "--yes", environment=sandbox.environment)
    code, output = process.interrupted_at("Copying")

    assert code == 130, output
    assert "Traceback" not in output
    assert "Finished files are kept" in output
    assert f"Resume: peagle {shlex.join(words)}\n" in output
    assert "Remove: peagle weights remove s3://models/stopped --sandbox\n" in output
    sandbox.json(*words, "--yes")
    assert sandbox.json("weights", "list", "s3://models/stopped", "--sandbox")["complete"]
