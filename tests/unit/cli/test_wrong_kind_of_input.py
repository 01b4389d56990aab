"""Input of another kind than the command takes: a folder, a file, a verdict or an amount."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import Peagle


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file and a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("text")
    (tmp_path / "models").mkdir()
    return tmp_path


@pytest.mark.thorough
def test_a_verdict_is_neither_a_plan_nor_a_result(peagle: Peagle) -> None:
    assert peagle("verdict", "tiny", "--gpu", "L4", "-o", "v.json").returncode == 0
    assert peagle("plan", "tiny", "--out", "plan.json").returncode == 0
    planned = peagle("plan", "v.json").stderr
    assert "v.json is a verdict, not a plan" in planned
    assert "--verdict v.json" in planned
    for file in ("v.json", "plan.json"):
        assert f"{file} holds no result" in peagle("bench", "report", file).stderr


@pytest.mark.parametrize(
    "words", [("fit", "--instance-type", "ml.g6.xlarge"), ("check",), ("catalog", "show")]
)
def test_a_command_without_plan_files_names_the_one_that_shows_them(
    peagle: Peagle, words: tuple[str, ...]
) -> None:
    assert peagle("plan", "tiny", "-o", "plan.json").returncode == 0
    done = peagle(*words, "plan.json", "--json")
    error = json.loads(done.stderr)["error"]
    assert (done.returncode, error["message"]) == (2, "'plan.json' is a plan file, not a pair")
    assert "kv cache" in peagle(*error["command"][1:]).stdout.lower()
