"""``peagle weights``: shown first, asked, copied, and used by ``peagle plan``."""

from __future__ import annotations

import json
import re
import shlex
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import Peagle
from tests.unit.sandbox.sandboxes import Account, Sandbox, started
from toolkit.aws.weights import Moment
from toolkit.catalog.loading import load_storage
from toolkit.catalog.storage import GB
from toolkit.cli.weights_words import describe, month_words
from toolkit.data import data_folder

BUCKET = "models"


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with started(Sandbox(tmp_path_factory.mktemp("sandbox"), Path(sys.executable))) as running:
        yield running


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


@pytest.mark.sandbox
def test_a_pair_is_copied_and_the_plan_that_uses_it_has_one_mount(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    done = _sync(sandbox, "tiny", "--yes")

    assert done.returncode == 0, done.stderr
    weights = {f"{part}/model.safetensors" for part in ("target", "drafter")}
    assert {*weights, "peagle-weights.json"} <= _keys(account, "tiny")
    assert "per month on AWS (nothing in the sandbox)" in done.stderr
    assert "s3://models/tiny/ is whole" in done.stderr
    use = re.search(r"Use it: peagle (plan .*)", done.stderr)
    assert use is not None
    plan = tmp_path / "plan.json"
    document = sandbox.told(*shlex.split(use[1]), "--out", str(plan))
    assert document["mounts"] == [{"channel": None, "s3_uri": "s3://models/tiny/"}]
    environment = document["environment"]
    assert environment["SM_VLLM_MODEL"] == "/opt/ml/model/target"
    assert '"model":"/opt/ml/model/drafter"' in environment["SM_VLLM_SPECULATIVE_CONFIG"]
    for form in ("cloudformation", "terraform", "boto3"):
        rendered = sandbox.peagle("render", form, str(plan), "-o", str(tmp_path / form))
        assert rendered.returncode == 0, rendered.stderr


@pytest.mark.sandbox
def test_json_is_one_document_and_nothing_else(sandbox: Sandbox, account: Account) -> None:
    document = sandbox.told("weights", "sync", "tiny", "s3://models/json", "--sandbox", "--yes")
    again = sandbox.told("weights", "sync", "tiny", "s3://models/json", "--sandbox", "--yes")

    assert document["bytes"] == document["bytes_moved"] > 10_000_000
    assert again["bytes_moved"] == 0
    assert document["folders"]["drafter"]["uri"] == "s3://models/json/drafter/"
    assert document["next"].startswith("peagle plan tiny --model-source s3://models/json/target/")


@pytest.mark.sandbox
def test_without_a_terminal_and_without_yes_nothing_is_copied(
    sandbox: Sandbox, account: Account
) -> None:
    done = _sync(sandbox, "asked")

    assert done.returncode == 2
    assert "target   catalog:peagle/tiny/target: 7 files, 9.2 MB -> target/" in done.stderr
    assert "add --yes" in done.stderr
    assert _keys(account, "asked") == set()


@pytest.mark.sandbox
def test_a_foreign_object_is_refused_and_nothing_is_copied(
    sandbox: Sandbox, account: Account
) -> None:
    account.s3.put_object(Bucket=BUCKET, Key="foreign/target/other.safetensors", Body=b"x")

    done = _sync(sandbox, "foreign", "--yes")

    assert done.returncode == 3
    assert "which every start would download too" in done.stderr
    assert _keys(account, "foreign") == {"target/other.safetensors"}


@pytest.mark.sandbox
def test_one_half_only(sandbox: Sandbox, account: Account) -> None:
    done = _sync(sandbox, "half", "--drafter-only", "--yes")

    assert done.returncode == 0, done.stderr
    assert {name.partition("/")[0] for name in _keys(account, "half")} == {
        "drafter", "peagle-weights.json"
    }  # fmt: skip
    assert "Use it: peagle plan tiny --drafter s3://models/half/drafter/" in done.stderr


@pytest.mark.sandbox
def test_a_head_of_the_users_own_goes_in_the_place_of_one_that_is_not_public(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    head = data_folder("model_catalog") / "peagle" / "tiny" / "p-eagle"
    to = "s3://models/own"
    words = ("weights", "sync", "gemma-4-31b", to, "--drafter-only", "--sandbox", "--yes")

    own = sandbox.told(*words, "--drafter-from", str(head))

    assert own["folders"]["drafter"]["source"] == str(head.resolve())
    assert own["next"] == f"peagle plan gemma-4-31b --drafter {to}/drafter/"


@pytest.mark.sandbox
def test_a_list_tells_what_lies_there(sandbox: Sandbox, account: Account) -> None:
    _sync(sandbox, "listed", "--yes")
    account.s3.delete_object(Bucket=BUCKET, Key="listed/target/config.json")

    told = sandbox.peagle("weights", "list", "s3://models/listed", "--sandbox")

    assert told.returncode == 0, told.stderr
    assert re.search(r"s3://models/listed/: not whole, .* MB, \S*tiny\S*\n", told.stdout)
    assert re.search(r"finish it: peagle weights sync .* s3://models/listed/ .*--sandbox\n",
                     told.stdout)  # fmt: skip
    assert re.search(r"missing +529 +config\.json", told.stdout)
    assert re.search(r"whole .*9,191,704 +model\.safetensors +SHA256:", told.stdout)


@pytest.mark.sandbox
def test_remove_takes_what_sync_brought_and_nothing_else(
    sandbox: Sandbox, account: Account
) -> None:
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
    assert "brought nothing to s3://models/removed/" in again.stderr


@pytest.mark.sandbox
def test_who_comes_second_is_told_who_is_first_and_how_to_take_over(
    sandbox: Sandbox, account: Account
) -> None:
    holder = {"id": "a" * 32, "who": "arn:aws:iam::1:user/anna", "machine": "build-7",
              "doing": "copies peagle/tiny", "since": "14:02 UTC"}  # fmt: skip
    lock = {"Bucket": BUCKET, "Key": "busy/peagle-weights.lock"}
    account.s3.put_object(**lock, Body=json.dumps(holder).encode())

    refused = _sync(sandbox, "busy", "--yes")

    assert refused.returncode == 3
    assert "arn:aws:iam::1:user/anna on build-7 copies peagle/tiny there since" in refused.stderr
    assert "--take-over" in refused.stderr.splitlines()[-1]
    assert "Left at" not in refused.stderr
    assert _keys(account, "busy") == {"peagle-weights.lock"}
    told = sandbox.told("weights", "list", "s3://models/busy", "--sandbox")
    assert told["at_work"].startswith("arn:aws:iam::1:user/anna on build-7")
    taken = _sync(sandbox, "busy", "--yes", "--take-over")
    assert taken.returncode == 0, taken.stderr
    assert "peagle-weights.lock" not in _keys(account, "busy")


@pytest.mark.sandbox
def test_warm_starts_are_listed_with_their_device_and_removed_with_the_weights(
    sandbox: Sandbox, account: Account
) -> None:
    _sync(sandbox, "warm", "--yes")
    manifest = {"size": 4, "subject": {"device": {"gpus": ["NVIDIA L40S (8.9)"], "driver": "580"}}}
    objects = {"json": json.dumps(manifest).encode(), "tar.gz": b"code"}
    for name, body in objects.items():
        key = f"warm/warm/{'0a' * 16}.{name}"
        account.s3.put_object(Bucket=BUCKET, Key=key, Body=body)

    listed = sandbox.peagle("weights", "list", "s3://models/warm", "--sandbox").stdout
    removed = sandbox.peagle("weights", "remove", "s3://models/warm", "--sandbox", "--yes")

    assert "s3://models/warm/: whole" in listed
    assert re.search(rf"whole +\d+  {'0a' * 16}  1 x NVIDIA L40S \(8\.9\), driver 580", listed)
    assert "1 warm start with it" in removed.stderr
    assert _keys(account, "warm") == set()


@pytest.mark.sandbox
def test_ctrl_c_says_what_is_left_and_how_to_go_on(
    sandbox: Sandbox, account: Account, tmp_path: Path
) -> None:
    size = 512 * 1024 * 1024
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "config.json").write_text('{"hidden_size": 4, "vocab_size": 8}')
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    words = ["weights", "sync", "tiny", "s3://models/stopped", "--target-only", "--target-from",
             str(tmp_path), "--sandbox"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "toolkit.cli", *words, "--yes"],
        env=sandbox.environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if line.startswith("Copying"):
            process.send_signal(signal.SIGINT)
            break
    said += process.stderr.read()
    process.stderr.close()

    assert process.wait(60) == 130, said
    assert "Traceback" not in said
    assert "Parts that are there are kept" in said
    assert f"Go on: peagle {shlex.join(words)}\n" in said
    assert "Remove it: peagle weights remove s3://models/stopped --sandbox\n" in said
    again = sandbox.told(*words, "--yes")
    assert again["bytes_moved"] < again["bytes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("s3://m", "--target-only"), "not an s3:// prefix"),
        (("s3://models/a", "--target-only", "--drafter-only"), "exclude each other"),
        (("s3://models/a", "--target-only", "--drafter-from", "./x"), "has no place"),
        (("s3://models/a", "--target-from", "nonsense"), "no place of weights"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    peagle: Peagle, own_home: Path, words: tuple[str, ...], said: str
) -> None:
    done = peagle("weights", "sync", "tiny", *words, "--sandbox", "--yes")

    assert done.returncode == 2
    assert said in done.stderr
    assert "Starting the sandbox" not in done.stderr


def test_a_pair_without_a_head_has_no_drafter_to_copy(peagle: Peagle, own_home: Path) -> None:
    done = peagle("weights", "sync", "tiny+ngram", "s3://models/a", "--drafter-only", "--sandbox")

    assert done.returncode == 2
    assert "drafts without weights" in done.stderr


def test_the_price_says_where_from_and_of_when() -> None:
    price = load_storage().price_in("us-east-1")
    assert price is not None

    words = month_words(100 * GB, price, "us-east-1")

    assert words.startswith(f"${100 * price.usd_per_gb_month:.2f} per month: S3 Standard in us-")
    assert str(price.date) in words
    assert load_storage().price_in("mars-north-1") is None
    assert "not known" in month_words(GB, None, "mars-north-1")


def _moment(**given: Any) -> Moment:
    usual: dict[str, Any] = {"done": 5_000_000_000, "total": 10_000_000_000, "moved": 1,
                             "speed": 250e6, "seconds_left": 20.0, "file": "target/a"}  # fmt: skip
    return Moment(**{**usual, **given})


def test_progress_in_words() -> None:
    assert describe(_moment()) == "Copying | 5.00 of 10.00 GB | 250 MB/s | 20s left | target/a"
    assert describe(_moment(seconds_left=None)) == "Copying | 5.00 of 10.00 GB | target/a"
    small = _moment(done=1_000_000, total=2_500_000, seconds_left=None)
    assert describe(small) == "Copying | 1.00 of 2.50 MB | target/a"
