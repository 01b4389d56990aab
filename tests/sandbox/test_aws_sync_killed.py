"""A sync of many parts is killed; the next run resumes it.

Parts are of 1 MiB here, and a run that shall be killed waits for it after so many of them.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.weights.transfer import WORKERS, combined, parts_of, sha256
from tests.sandbox.sandboxes import Account, Sandbox, started, until
from tests.unit.aws.syncing import CONFIG, index_of

pytestmark = pytest.mark.sandbox

MIB = PART_BYTES = 1024 * 1024
SHARDS = {"model-1.safetensors": 24 * MIB, "model-2.safetensors": 24 * MIB,
          "model-3.safetensors": 16 * MIB}  # fmt: skip
PARTS = sum(-(-(size + 200) // PART_BYTES) for size in SHARDS.values())
KILLED_AFTER = 24
"""Parts: in the middle of a file, since small ones are sent first."""

COMMAND = """
import itertools, sys, threading
from peagle.aws.client import Aws
from peagle.weights import transfer as parts
from peagle.cli.main import main

parts.PART_BYTES = {part_bytes}
call, count = Aws.call, itertools.count()

def call_or_wait(self, service, operation, **parameters):
    if operation == "upload_part" and next(count) >= {most}:
        threading.Event().wait()
    return call(self, service, operation, **parameters)

Aws.call = call_or_wait
sys.argv[0] = "peagle"
main()
"""
"""``peagle`` that sends at most ``most`` parts and then waits."""


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
    with path.open("rb") as file:
        parts = parts_of(path.stat().st_size, PART_BYTES)
        return combined(sha256(file.read(part.size)) for part in parts)


def _calls(sandbox: Sandbox, call: str) -> int:
    """The number of such calls in the sandbox's log."""
    lines = next((sandbox.home / "sandbox").glob("*.log")).read_text().splitlines()
    return sum(bool(re.search(rf" {re.escape(call)}.* 200 \d+ ms$", line)) for line in lines)


def _sent(sandbox: Sandbox) -> int:
    """The number of parts sent so far."""
    return _calls(sandbox, "PUT /models/big/target/model-")


def _is_in_the_middle(sandbox: Sandbox) -> bool:
    """The first file is an object, and the upload of the next is unfinished."""
    whole = _calls(sandbox, "POST /models/big/target/model-3.safetensors") == 2
    return whole and _sent(sandbox) >= KILLED_AFTER


def _sent_when_idle(sandbox: Sandbox) -> int:
    """The same once no request is in flight."""
    sent, since = _sent(sandbox), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.1)
        if (now := _sent(sandbox)) != sent:
            sent, since = now, time.monotonic()
    return sent


def test_after_a_kill_no_part_is_sent_twice(sandbox: Sandbox, model: Path) -> None:
    account = Account(sandbox)
    command = ("weights", "sync", "tiny", "s3://models/big", "--target-only", "--target-from",
               str(model), "--sandbox", "--yes")  # fmt: skip
    first = subprocess.Popen(
        _python(KILLED_AFTER + WORKERS, *command),
        env=sandbox.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: _is_in_the_middle(sandbox), bool, seconds=120)
    first.kill()
    assert first.wait(10) < 0
    before = _sent_when_idle(sandbox)
    listed = sandbox.peagle("weights", "list", "s3://models/big", "--sandbox", "--json")
    assert listed.returncode == 3
    half = json.loads(listed.stdout)

    second = subprocess.run(
        _python(2 * PARTS, *command, "--json"),
        env=sandbox.environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert second.returncode == 0, second.stderr
    document = json.loads(second.stdout)
    kept = half["bytes"] // PART_BYTES
    assert KILLED_AFTER - WORKERS <= kept < PARTS
    assert not half["complete"]
    assert "half" in {file["state"] for file in half["folders"]["target"]["files"]}
    assert _sent(sandbox) <= PARTS + WORKERS
    assert _sent(sandbox) - before <= PARTS - kept + WORKERS
    assert document["bytes_moved"] <= document["bytes"] - kept * PART_BYTES + WORKERS * PART_BYTES
    for name in SHARDS:
        key = f"big/target/{name}"
        found = account.s3.head_object(Bucket="models", Key=key, ChecksumMode="ENABLED")
        assert found["ContentLength"] == (model / name).stat().st_size
        assert found["ChecksumSHA256"] == _checksum(model / name)
    assert sandbox.json("weights", "list", "s3://models/big", "--sandbox")["complete"]
    assert os.stat(model / "model-1.safetensors").st_blocks * 512 < 5 * MIB
