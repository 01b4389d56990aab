"""State files of the sandbox that are damaged: one is ignored, the others and the command go on."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from peagle.engine.process import EngineProcess, start_time
from peagle.errors import UserError
from peagle.sandbox import client, state
from tests.support import raises_code

DAMAGED = [
    b"", b"{", b"null", b"\xff\xfe", b"[" * 100_000,
    b'{"pid": "*", "started": " ", "port": 1, "log": ""}',
    b'{"pid": 1, "started": 1, "port": 1, "log": ""}',
    b'{"pid": 99999999999999999999, "started": 1, "port": 1, "log": ""}',
    b'{"pid": 7, "started": 1, "port": true, "log": ""}',
    b'{"pid": 7, "started": 1, "port": 1, "log": [], "container": {}}',
    b'{"of": "another version"}',
]  # fmt: skip


@pytest.fixture
def folder(own_home: Path) -> Path:
    folder = own_home / "sandbox"
    (folder / "engines").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:40])
def test_a_damaged_record_stops_one_entry_and_not_the_command(folder: Path, content: bytes) -> None:
    started = start_time(os.getpid())
    assert started is not None
    living = EngineProcess(os.getpid(), started, 1, "")
    (folder / "engines" / f"{living.pid}.json").write_text(json.dumps(asdict(living)))
    for name in ("daemon.json", "engine", "engines/9.json", "engines/1000.json"):
        (folder / name).write_bytes(content)
    assert state.living_engines() == (living,)
    left = (state.LeftoverEngine(living.pid, "unknown", "unknown"),)
    assert client.sandbox_status() == client.Status(False, leftover_engines=1, leftovers=left)
    assert state.read_engine_kind() == "process"


@pytest.mark.parametrize(
    "content", [*DAMAGED, '{"id": "ü", "secret": "é"}'.encode()], ids=lambda content: content[:40]
)
def test_a_sandbox_without_a_readable_key_is_to_be_restarted(folder: Path, content: bytes) -> None:
    (folder / "access-key.json").write_bytes(content)
    with raises_code("sandbox-key", UserError):
        state.read_access_key()
