"""The order of memory rows, and the CPUs of several streams."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import host, memory
from measurements.gpu.geometry import Setting

ONE = Setting("gemma-4-31b", "p-eagle", 3)
OTHER = Setting("gpt-oss-20b", "p-eagle", 3)
SEVERAL = Setting("gpt-oss-20b", tensor_parallel_size=2)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Pair and GPUs of each row, in the order in which they end."""
    found: list[tuple[str, str]] = []
    turn = threading.Lock()

    def row(
        setting: Setting, gpus: str, cpus: Sequence[int], out: Path, end: float
    ) -> dict[str, Any]:
        with turn:
            found.append((setting.pair, gpus))
        return {"name": setting.name, "ranks": []}

    monkeypatch.setattr(memory, "row_in_process", row)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return found


def test_phases_come_in_order_and_no_row_twice(ran: list[tuple[str, str]], tmp_path: Path) -> None:
    phases = (("gemma", 1.0), ("_tp2$", 1.0), ("", 1.0))
    memory.run_all(tmp_path, ["0", "1"], 100, [OTHER, ONE, SEVERAL], phases)
    assert [pair for pair, _ in ran] == ["gemma-4-31b", "gpt-oss-20b", "gpt-oss-20b"]
    assert ran[1][1] == "0,1"
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3


def test_no_row_of_a_phase_starts_after_its_share(
    ran: list[tuple[str, str]], tmp_path: Path
) -> None:
    memory.run_all(tmp_path, ["0"], 100, [ONE, OTHER], (("gemma", 0.0), ("gpt", 1.0)))
    assert ran == [("gpt-oss-20b", "0")]


def test_streams_share_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(32)))
    assert host.cpu_share(0, 1) == list(range(32))
    assert host.cpu_share(0, 2) + host.cpu_share(1, 2) == list(range(32))
    restricted: list[list[int]] = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: restricted.append(cpus))
    assert host.yield_cpus() == list(range(24))
    assert restricted == [list(range(24, 32))]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert host.cpu_share(1, 2) == [5]
    assert host.yield_cpus() == [5]
