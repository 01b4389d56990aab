"""All of the warm-start measurement, with a stand-in for the container: two machines' worth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import served, warm, warm_artefacts, warm_evidence

STAND_IN = Path(__file__).with_name("stand_in_container.py")

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("first")``: the step, its results in ``tmp_path/first``."""
    monkeypatch.setattr(served, "SERVE", STAND_IN)
    monkeypatch.setattr(served, "_POLL_SECONDS", 0.01)

    def once(step: str, *more: str) -> int:
        given = ["--cpu", "--python", sys.executable, "--seconds", "120"]
        folders = ["--root", str(tmp_path / "root"), "--out", str(tmp_path / step)]
        return warm.main([step, *given, *folders, *more])

    return once


def starts(tmp_path: Path, step: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((tmp_path / step / f"warm-{step}.json").read_text())[
        "starts"
    ]
    return found


def test_the_first_machine_starts_cold_kept_and_restored(run: Run, tmp_path: Path) -> None:
    assert run("first") == 0

    cold, kept, restored = starts(tmp_path, "first")
    assert [one["kind"] for one in (cold, kept, restored)] == ["cold", "kept", "restored"]
    assert [one["engine"]["engine_start_seconds"] for one in (cold, kept, restored)] == [
        51.5,
        2.5,
        2.5,
    ]
    assert cold["anew_bytes"] == {"vllm": 28672}
    assert kept["anew_bytes"] == {}
    assert restored["restore_seconds"] == 0.25
    assert cold["healthy_seconds"] == 60.0
    assert cold["artefact"]["files"] == 1
    assert cold["handed"] == ["warm-tiny.1"]
    assert 0 < cold["green_seconds"] < 60


def test_another_machine_restores_what_was_handed_over(run: Run, tmp_path: Path) -> None:
    assert run("first") == 0
    other = ("--root", str(tmp_path / "other"))

    assert warm.main(["take", str(tmp_path / "first" / "warm-tiny.1"), *other]) == 0
    assert run("second", *other) == 0

    restored, cold = starts(tmp_path, "second")
    assert (restored["kind"], cold["kind"]) == ("restored", "cold")
    assert restored["engine"]["engine_start_seconds"] == 2.5
    assert cold["engine"]["engine_start_seconds"] == 51.5
    assert cold["elsewhere_bytes"]["HOME"], "its caches are in its home"
    evidence = tmp_path / "evidence.json"
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert warm.main(["collect", *folders, "--cpu", "--evidence", str(evidence)]) == 0
    rows = {
        (row["machine"], row["kind"]): row for row in json.loads(evidence.read_text())["summary"]
    }
    assert rows["second", "restored"]["times_faster"]["engine_start_seconds"] == 20.6
    assert set(rows) == {("first", "kept"), ("first", "restored"), ("second", "restored")}


def test_a_short_lease_leaves_starts_out_and_compares_with_the_other_machine(
    run: Run, tmp_path: Path
) -> None:
    assert run("first", "--kinds", "cold") == 0
    other = ("--root", str(tmp_path / "other"))
    assert warm.main(["take", str(tmp_path / "first" / "warm-tiny.1"), *other]) == 0
    assert run("second", *other, "--kinds", "restored") == 0

    assert [one["kind"] for one in starts(tmp_path, "first")] == ["cold"]
    assert [one["kind"] for one in starts(tmp_path, "second")] == ["restored"]
    evidence = tmp_path / "evidence.json"
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert warm.main(["collect", *folders, "--cpu", "--evidence", str(evidence)]) == 0
    (row,) = json.loads(evidence.read_text())["summary"]
    assert (row["machine"], row["cold_machine"]) == ("second", "first")
    assert row["times_faster"]["engine_start_seconds"] == 20.6


def test_a_start_that_fails_is_told_and_the_rest_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILS", "off")

    assert run("first") == 1

    cold, kept, restored = starts(tmp_path, "first")
    assert "no luck" in kept["error"]
    assert "error" not in cold
    assert "error" not in restored
    assert "kept: ended with 1" in capsys.readouterr().out


def test_without_a_collected_artefact_nothing_is_measured_against_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "collect")

    assert run("first") == 1

    (cold,) = starts(tmp_path, "first")
    assert "no luck" in cold["error"]


def test_a_machine_without_all_pieces_says_so(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("second") == 1
    assert "no piece of warm-tiny" in capsys.readouterr().out


def test_when_the_time_is_over_no_start_is_begun(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("first", "--seconds", "5") == 0
    assert starts(tmp_path, "first") == []
    assert "cold: left out" in capsys.readouterr().out


def test_what_does_not_fit_one_command_is_handed_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warm_artefacts, "MOST_FILES", 2)
    parcels, out = tmp_path / "parcels", tmp_path / "out"
    parcels.mkdir()
    for number in range(3):
        (parcels / f"warm-a.{number}").write_bytes(b"x" * 100)
    out.mkdir()
    assert [path.name for path in warm_artefacts.hand(parcels, out)] == ["warm-a.0", "warm-a.1"]
    assert "left for another command (warm hand): warm-a.2" in capsys.readouterr().out
    for path in out.iterdir():
        path.unlink()
    assert [path.name for path in warm_artefacts.hand(parcels, out)] == ["warm-a.2"]
    assert warm_artefacts.hand(parcels, out) == []


def results(step: str, **machine: str) -> dict[str, Any]:
    here = {"boot": step, "vllm": "0.26.0", "torch": "2.11.0", "device": "H200", "driver": "580"}
    start = {"pair": "p", "kind": "cold", "begin": "2026-11-22T10:00:00", "green_seconds": 80.0}
    return {"step": step, "machine": here | machine, "starts": [start]}


@pytest.mark.parametrize(
    ("second", "said"),
    [
        (results("second", boot="first"), "not a fresh one"),
        (results("second", driver="581"), "differ in driver: 580, 581"),
        (results("first", boot="other"), "two machines of the step first"),
    ],
)
def test_runs_that_do_not_belong_together_are_refused(
    second: dict[str, Any], said: str, tmp_path: Path
) -> None:
    for name, run in (("a", results("first")), ("b", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "warm-x.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match=said):
        warm_evidence.document([tmp_path / "a", tmp_path / "b"])


def test_a_start_with_an_error_is_kept_and_not_compared() -> None:
    run = results("first")
    run["starts"].append({**run["starts"][0], "kind": "restored", "error": "not ready"})
    assert warm_evidence.summary({"first": run}) == []
