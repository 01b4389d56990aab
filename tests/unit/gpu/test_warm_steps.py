"""The steps of a warm-start measurement on two machines, with a fake container."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from measurements.gpu import container, warm, warm_evidence

FAKE = Path(__file__).with_name("fake_container.py")

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run("first")`` runs a step with its results in ``tmp_path/first``."""
    monkeypatch.setattr(container, "SERVE", FAKE)
    monkeypatch.setattr(container, "_POLL_SECONDS", 0.01)

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


def other_machine(tmp_path: Path) -> tuple[str, ...]:
    artifacts = tmp_path / "first" / "artifacts"
    return ("--root", str(tmp_path / "other"), "--artifacts", str(artifacts))


def collect(tmp_path: Path) -> list[dict[str, Any]]:
    """The summary of the evidence file of both steps."""
    path = tmp_path / "evidence.json"
    folders = [str(tmp_path / "first"), str(tmp_path / "second")]
    assert warm.main(["collect", *folders, "--cpu", "--evidence", str(path)]) == 0
    summary: list[dict[str, Any]] = json.loads(path.read_text())["summary"]
    return summary


@pytest.mark.thorough
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
    assert cold["artifact"]["files"] == 1
    saved = tmp_path / "first" / "artifacts" / "tiny"
    assert {path.suffix for path in saved.iterdir()} == {".json", ".gz"}
    assert 0 < cold["green_seconds"] < 60


@pytest.mark.thorough
def test_another_machine_restores_the_artifact(run: Run, tmp_path: Path) -> None:
    assert run("first") == 0
    assert run("second", *other_machine(tmp_path)) == 0
    restored, cold = starts(tmp_path, "second")
    assert (restored["kind"], cold["kind"]) == ("restored", "cold")
    assert restored["engine"]["engine_start_seconds"] == 2.5
    assert cold["engine"]["engine_start_seconds"] == 51.5
    assert cold["elsewhere_bytes"]["HOME"], "the caches are in its home"
    summary = collect(tmp_path)
    rows = {(row["machine"], row["kind"]): row for row in summary}
    assert rows["second", "restored"]["times_faster"]["engine_start_seconds"] == 20.6
    assert set(rows) == {("first", "kept"), ("first", "restored"), ("second", "restored")}


@pytest.mark.thorough
def test_a_failed_start_is_recorded_and_the_rest_continues(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAILS", "off")
    assert run("first") == 1
    cold, kept, restored = starts(tmp_path, "first")
    assert "no luck" in kept["error"]
    assert "error" not in cold
    assert "error" not in restored
    assert "kept: exited with 1" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_missing_artifact_is_reported(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("second") == 1
    assert "NoArtifact: no artifact of tiny" in capsys.readouterr().out


def results(step: str, **machine: str) -> dict[str, Any]:
    here = {"boot": step, "vllm": "0.26.0", "torch": "2.11.0", "device": "H200", "driver": "580"}
    start = {"pair": "p", "kind": "cold", "begin": "2026-11-22T10:00:00", "green_seconds": 80.0}
    return {"step": step, "machine": here | machine, "starts": [start]}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (results("second", boot="first"), "was not fresh"),
        (results("second", driver="581"), "differ in driver: 580, 581"),
        (results("first", boot="other"), "step first ran on two machines"),
    ],
)
def test_results_that_do_not_belong_together_are_refused(
    second: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for name, run in (("a", results("first")), ("b", second)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "warm-x.json").write_text(json.dumps(run))
    with pytest.raises(ValueError, match=message):
        warm_evidence.warm_document([tmp_path / "a", tmp_path / "b"])


def test_a_failed_start_is_not_compared() -> None:
    run = results("first")
    run["starts"].append({**run["starts"][0], "kind": "restored", "error": "not ready"})
    assert warm_evidence.warm_summary({"first": run}) == []
