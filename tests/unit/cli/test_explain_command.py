"""``peagle explain`` knows every code that the chapter on errors lists."""

from __future__ import annotations

import re

import pytest

from peagle.cli.machine import read_explanations
from peagle.data import data_folder
from tests.support import in_process

PAGE = (data_folder("docs") / "errors.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("code", "severity", "about"),
    [
        ("fc-width", "error", "Draft heads"),
        ("head-window", "warning", "Draft heads"),
        ("interrupted", None, "Interrupted (exit code 130)"),
        ("out-of-memory", None, "Why an engine ended"),
    ],
)
def test_a_code_has_a_cause_or_a_fix(code: str, severity: str | None, about: str) -> None:
    rows = in_process("explain", code, "--json").document["explanations"]
    assert {(row["severity"], row["about"]) for row in rows} == {(severity, about)}
    assert all(row["cause"] or row["fix"] for row in rows)
    shown = in_process("explain", code)
    assert (shown.code, shown.out.startswith(f"{code}: ")) == (0, True)


def test_every_row_is_read_without_marks() -> None:
    listed = re.findall(r"^\| `([^`]+)`", PAGE, re.MULTILINE)
    rows = list(read_explanations())
    assert [row.code for row in rows] == listed
    texts = [text for row in rows for text in (row.cause, row.fix) if text]
    assert not [text for text in texts if "\\|" in text or re.search(r"(^| )\*\w", text)]


@pytest.mark.parametrize(
    ("line", "code"), [("explain fc-widt --json", "unknown-code"), ("explain --json", "usage")]
)
def test_what_is_no_code_is_refused(line: str, code: str) -> None:
    done = in_process(*line.split())
    assert (done.code, done.refusal["code"]) == (2, code)
