"""``peagle plan --changes-from``: the change, its price, and the gate on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import Done, in_process

FILE = "endpoints: {chat: {pair: tiny, instance_type: %s}}\n"


@pytest.fixture
def earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that costs more than the earlier one in the folder ``base``."""
    monkeypatch.chdir(tmp_path)
    path = Path("base/peagle.yaml")
    path.parent.mkdir()
    path.write_text(FILE % "ml.g6.xlarge")
    Path("peagle.yaml").write_text(FILE % "ml.g5.xlarge")
    return path


def changes(*arguments: str) -> Done:
    return in_process("plan", "--changes-from", *arguments)


def test_the_comment_has_a_table_the_cost_and_the_findings(earlier: Path) -> None:
    text = changes(str(earlier), "--markdown").out
    assert text.startswith("### Plan of chat\n\n| | before | after |\n|---|---|---|\n")
    assert "| instance type | ml.g6.xlarge | ml.g5.xlarge |" in text
    assert "**Cost**: $1.41 per hour, $1,013.76 per 30 days; before $1.13 per hour (+25%)" in text


def test_a_plan_file_is_an_earlier_plan_too(earlier: Path) -> None:
    assert in_process("plan", "-o", "old.json").code == 0
    done = changes("old.json", "--markdown")
    assert "The plan does not change." in done.out
    assert done.out.rstrip().endswith("per 30 days, as before")


def test_a_new_endpoint_has_no_earlier_plan(earlier: Path) -> None:
    Path("none").mkdir()  # a checkout without the file
    done = changes("none/peagle.yaml", "--json")
    assert done.err == "none/peagle.yaml does not exist: the endpoint is new\n"
    assert done.document["before"] is None
    assert done.document["price_increase"] is None
    earlier.write_text("endpoints: {other: {pair: tiny}}\n")
    assert changes(str(earlier), "--json").document["before"] is None


@pytest.mark.parametrize("typed", ["bas/peagle.yaml", "base/peagel.yaml", "typo.yaml"])
def test_a_mistyped_file_is_no_new_endpoint(earlier: Path, typed: str) -> None:
    done = changes(typed, "--json")
    assert (done.code, done.out) == (2, "")
    assert f"--changes-from {typed} does not exist" in done.err
    assert "peagle.yaml in a checkout of the base" in done.err


def test_an_earlier_file_that_is_wrong_does_not_stop_its_repair(earlier: Path) -> None:
    earlier.write_text(FILE % "ml.g9.xlarge")
    done = changes(str(earlier), "--json")
    assert done.code == 0
    assert "the earlier plan cannot be made: the catalogue" in done.err


@pytest.mark.parametrize(("most", "code"), [("20", 3), ("25", 0)])
def test_a_price_that_rises_by_more_than_the_gate_is_refused(
    earlier: Path, most: str, code: int
) -> None:
    text = Path("peagle.yaml").read_text()
    Path("peagle.yaml").write_text(f"{text}gates: {{plan: {{max_price_increase: {most}}}}}\n")
    done = changes(str(earlier), "--json")
    assert done.code == code
    assert done.document["price_increase"] == pytest.approx(0.249, abs=0.001)
    assert ("the price rises by 25%, and the gate allows 20 %" in done.err) == bool(code)


def test_its_options_need_an_earlier_plan(earlier: Path) -> None:
    assert "--markdown requires --changes-from" in in_process("plan", "--markdown").error
