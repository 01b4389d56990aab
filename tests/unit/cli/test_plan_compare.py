"""``peagle plan A --compare B``: two plans side by side."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support import in_process
from tests.unit.checks.damage import tiny


def compared(*words: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """The two answers, and the settings that differ."""
    done = in_process("plan", *words, "--json")
    assert done.code == 0, done.err
    first, second = done.document["plans"]
    return first, second, [change["setting"] for change in done.document["changes"]]


@pytest.mark.thorough
def test_the_second_pair_may_have_options_of_its_own() -> None:
    other = "gpt-oss-20b --no-speculation --max-model-len 16k"
    first, second, _ = compared("gpt-oss-20b", "--max-model-len", "8k", "--compare", other)
    assert (second["method"], second["k"], second["max_model_len"]) == (None, 0, 16384)
    assert first["k"] > 0


@pytest.mark.thorough
def test_plan_files_are_compared_as_they_are(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for file, k in zip(files, ("3", "5"), strict=True):
        assert in_process("plan", "gpt-oss-20b", "--k", k, "--out", file).code == 0
    first, second, changes = compared(files[0], "--compare", files[1])
    assert (first["k"], second["k"]) == (3, 5)
    assert changes == ["k"]


def test_a_folder_is_compared_with_a_pair_of_the_catalogue() -> None:
    first, second, _ = compared("tiny", "--compare", shlex.join([str(tiny("target"))]))
    assert (first["pair"], second["pair"]) == ("peagle/tiny+p-eagle", "own/target")


def test_a_plan_that_cannot_be_deployed_is_shown_and_refused() -> None:
    done = in_process("plan", "tiny", "--compare", "tiny --k 99", "--json")
    assert done.code == 3
    assert '"refused": "k-above-trained"' in done.out


def test_a_comparison_writes_no_file(tmp_path: Path) -> None:
    done = in_process("plan", "tiny", "--compare", "tiny", "--out", str(tmp_path / "x.json"))
    assert (done.code, [*tmp_path.iterdir()]) == (2, [])
