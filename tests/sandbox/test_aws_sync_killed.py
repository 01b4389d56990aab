"""A sync is killed in the middle of a file; the next run copies what is missing, per file.

Parts are of 1 MiB here, and a run that shall be killed waits for it after so many of them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.aws.s3 import PARTS_AT_ONCE
from tests.sandbox.sandboxes import Account, Sandbox, started, until
from tests.unit.aws.syncing import CONFIG, index_of

pytestmark = pytest.mark.sandbox
MIB = PART_BYTES = 1024 * 1024
SHARDS = {"model-1.safetensors": 24 * MIB, "model-2.safetensors": 24 * MIB,
          "model-3.safetensors": 8 * MIB}  # fmt: skip
PARTS = sum(-(-(size + 200) // PART_BYTES) for size in SHARDS.values())
KILLED_AFTER = 28
"""Parts: small files are first, and the others are sent at the same time."""
COMMAND = """
import itertools, sys, threading
from s3transfer.upload import UploadPartTask
from s3transfer.utils import ChunksizeAdjuster
from peagle.aws import s3
from peagle.cli.main import main

ChunksizeAdjuster.__init__.__defaults__ = (2**33, {part_bytes}, 10_000)
s3.PART_BYTES = {part_bytes}
send, count = UploadPartTask._main, itertools.count()

def send_or_wait(self, *arguments, **keywords):
    if "model-3" not in keywords["key"] and next(count) >= {most}:
        threading.Event().wait()
    return send(self, *arguments, **keywords)

UploadPartTask._main = send_or_wait
sys.argv[0] = "peagle"
main()
"""
"""``peagle`` that sends all of model-3, and at most ``most`` parts of others, and then waits."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    own = Sandbox(tmp_path_factory.mktemp("sandbox"), Path(sys.executable))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_UPLOAD_PART_MIN_SIZE", str(PART_BYTES))
        with started(own) as running:
            yield running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_bytes(CONFIG)
    tensors = {name.removesuffix(".safetensors"): name for name in SHARDS}
    (folder / "model.safetensors.index.json").write_bytes(index_of(tensors))
    for tensor, name in tensors.items():
        _write_sparse(folder / name, tensor, SHARDS[name])
    return folder


def _write_sparse(path: Path, tensor: str, size: int) -> None:
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({tensor: entry}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
        for number in range(1, size // PART_BYTES):
            file.seek(number * PART_BYTES)
            file.write(f"{tensor}, part {number}".encode())


def _python(most: int, *arguments: str) -> list[str]:
    """The command line of a process that sends at most ``most`` parts."""
    return [sys.executable, "-c", COMMAND.format(part_bytes=PART_BYTES, most=most), *arguments]


def _checksum(path: Path) -> str:
    """S3's checksum of the file, from its bytes here."""
    content = path.read_bytes()
    parts = (content[at : at + PART_BYTES] for at in range(0, len(content), PART_BYTES))
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    return base64.b64encode(hashlib.sha256(digests).digest()).decode()


def _calls(sandbox: Sandbox, call: str) -> int:
    """The number of such calls in the sandbox's log."""
    lines = next((sandbox.home / "sandbox").glob("*.log")).read_text().splitlines()
    return sum(bool(re.search(rf" {re.escape(call)}.* 200$", line)) for line in lines)


def _sent(sandbox: Sandbox) -> int:
    """The number of parts sent so far."""
    return _calls(sandbox, "PUT /models/big/target/model-")


def _is_in_the_middle(sandbox: Sandbox) -> bool:
    """The first file is an object, and the upload of the next is unfinished."""
    whole = _calls(sandbox, "POST /models/big/target/model-3.safetensors") == 2
    return whole and _sent(sandbox) >= KILLED_AFTER


def test_after_a_kill_whole_files_are_not_sent_again(sandbox: Sandbox, model: Path) -> None:
    account = Account(sandbox)
    command = ("weights", "sync", "tiny", "s3://models/big", "--target-only", "--target-from",
               str(model), "--sandbox", "--yes")  # fmt: skip
    first = subprocess.Popen(
        _python(KILLED_AFTER + PARTS_AT_ONCE, *command),
        env=sandbox.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: _is_in_the_middle(sandbox), bool, seconds=120)
    first.kill()
    assert first.wait(10) < 0
    listed = sandbox.peagle("weights", "list", "s3://models/big", "--sandbox", "--json")
    assert listed.returncode == 3
    partial = json.loads(listed.stdout)
    second = subprocess.run(
        _python(2 * PARTS, *command, "--take-over", "--json"),
        env=sandbox.environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert second.returncode == 0, second.stderr
    document = json.loads(second.stdout)
    states = {file["name"]: file["state"] for file in partial["folders"]["target"]["files"]}
    whole = {name for name in SHARDS if states[name] == "unchecked"}
    assert "model-3.safetensors" in whole
    assert "missing" in states.values()
    missing = sum((model / name).stat().st_size for name in SHARDS if name not in whole)
    assert document["bytes_moved"] == missing
    listed_uploads = account.s3.list_multipart_uploads(Bucket="models")
    assert not listed_uploads.get("Uploads")
    for name in SHARDS:
        key = f"big/target/{name}"
        found = account.s3.head_object(Bucket="models", Key=key, ChecksumMode="ENABLED")
        assert found["ContentLength"] == (model / name).stat().st_size
        assert found["ChecksumSHA256"].split("-")[0] == _checksum(model / name)
    assert sandbox.json("weights", "list", "s3://models/big", "--sandbox")["complete"]
