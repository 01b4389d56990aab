"""The plan of a lease keeps to its limits, and every command in it can be run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.gpu import lease


@pytest.mark.parametrize("gpus", [1, 2])
def test_it_fits_the_lease(gpus: int, tmp_path: Path) -> None:
    planned = list(lease.calls(gpus, tmp_path))
    assert sum(call.seconds for call in planned) <= lease.BUDGET_SECONDS
    for call in planned:
        assert len(call.command) < lease.MOST_COMMAND
        assert call.timeout <= lease.MOST_SECONDS
        assert len(call.carry) <= 8
    steps = [(call.machine, call.name) for call in planned if "piece" not in call.name]
    firsts = [(1, "first")] * (2 if gpus == 1 else 1)
    assert steps == [(1, "memory"), *firsts, (2, "second"), (2, "speed")]


@pytest.mark.parametrize("name", ["memory", "speed", "first", "second", "piece 1", "warm pieces"])
def test_every_command_is_understood(name: str, tmp_path: Path) -> None:
    """Its program takes the arguments: with --help after them it shows its help."""
    (call, *_) = [call for call in lease.calls(2, tmp_path) if call.name == name]
    words = shlex.split(call.command.rpartition("; ")[2].replace("$OUT", "out"))
    assert words[:2] == ["python3", "-m"]
    root = Path(lease.__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, *words[1:], "--help"], capture_output=True, cwd=root)
    assert done.returncode == 0, done.stderr
    assert b"usage:" in done.stdout


def test_pieces_that_came_back_travel_in_as_many_calls_as_they_need(tmp_path: Path) -> None:
    for number, mib in enumerate((15, 15, 15, 15), 1):
        with (tmp_path / f"warm-a.{number}").open("wb") as file:
            file.truncate(mib << 20)
    found = [call.carry for call in lease.warm_calls(tmp_path)]
    assert [len(carry) for carry in found] == [2, 2]
    assert found[0][0].endswith("warm-a.1")
    (only,) = lease.warm_calls(tmp_path / "nothing")
    assert only.carry == (str(tmp_path / "nothing"),)


def test_what_is_too_much_or_missing_is_said(tmp_path: Path) -> None:
    piece = tmp_path / "piece"
    with piece.open("wb") as file:
        file.truncate(42 << 20)
    call = next(lease.calls(2))
    fits, *rest = lease.luggage([replace(call, carry=(str(piece),))], 20.0)
    assert fits == "at most 62.0 of 64 MiB travel in a call, 20.0 are the working tree"
    assert rest == []
    found = list(lease.luggage([replace(call, carry=(str(piece), "nowhere"))], 23.0))
    assert found[1:] == ["too much: make smaller pieces (carry make --piece-mib)",
                         "not there yet: nowhere"]  # fmt: skip
