"""The four shapes of an answer: a narrow terminal loses no text and breaks no command."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from peagle.cli.view.console import (
    bar,
    print_documents,
    print_facts,
    print_findings,
    print_json,
    print_next,
    print_table,
)
from peagle.findings import Finding

COMMAND = ("peagle", "plan", "a" * 40, "--set", "a value with blanks")
FINDING = Finding(
    level="warning", code="some-code", where="max_model_len", message="m " * 30, fix="do it",
    command=COMMAND,
)  # fmt: skip
LINE = f"peagle plan {'a' * 40} --set 'a value with blanks'"


@pytest.mark.parametrize("width", ["40", "60", "200", ""])
def test_every_shape_keeps_its_texts_and_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    rows = [("ml.g6e.xlarge", "1,234,567", "word " * 9), ("x", "7", "")]

    print_table(("type", "tokens", "why"), rows, right=("tokens",), title="Table")
    print_facts([("label", "text " * 9), ("to do", ("run", LINE)), ("none", "")], err=False)
    print_findings([FINDING], title="Findings")
    print_next("Next", LINE)

    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert shown.count("word") == shown.count("text") == 9
    assert "1,234,567" in shown
    assert "[some-code]" in shown
    assert "--max-model-len:" in shown
    assert shown.count(LINE) == 3, "of a fact, of a finding, and the next one"
    assert "none" not in shown


def test_a_table_without_rows_has_no_title(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a",), [], title="Title")

    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("shares", "blocks"), [((0.25, 0.5), 15), ((0.0,), 0), ((0.7, 0.7), 20), ((-1.0,), 0)]
)
def test_a_bar_is_full_to_the_sum_of_its_parts(shares: tuple[float, ...], blocks: int) -> None:
    drawn = bar(((share, "") for share in shares), 20).plain

    assert len(drawn) == 20
    assert drawn.count("█") + drawn.count("#") == blocks


def test_a_document_is_the_dump_of_its_model(capsys: pytest.CaptureFixture[str]) -> None:
    class Answer(BaseModel):
        number: int
        names: tuple[str, ...]

    print_json({"answer": Answer(number=1, names=("a",))})

    assert json.loads(capsys.readouterr().out) == {"answer": {"number": 1, "names": ["a"]}}


def test_no_column_is_cut_off_where_the_terminal_is_narrow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    place = {
        "instance_type": "ml.g7e.12xlarge",
        "gpu": "RTX PRO 6000",
        "price_per_hour_usd": 10.36,
        "max_concurrency": 43.27,
        "tokens_per_second": 1852.0,
        "usd_per_million_tokens": 1.55,
    }

    print_documents([place], [*place])

    headings, row = capsys.readouterr().out.splitlines()
    assert headings.split() == ["instance", "gpu", "$/hour", "requests", "tokens/s", "$/1M"]
    assert row.split()[-4:] == ["$10.36", "43.27", "1,852", "$1.55"]
