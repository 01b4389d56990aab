"""docs/cli.md and docs/errors.md are what the code says, and no code lacks a cause or a fix."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from measurements.pictures import __main__ as pictures
from peagle.checks import list_rules
from tests.support import bundled_evidence
from tools.docs.codes import errors_found, findings_found, incomplete, known_problems
from tools.docs.markdown import cell
from tools.docs.pages import PAGES
from tools.docs.templates import CLOSE, OPEN, PACKAGE, Text


@pytest.fixture(scope="module", autouse=True)
def _bundled() -> Iterator[None]:
    with bundled_evidence():
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_chapter_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "run `make docs`"


@pytest.mark.thorough
def test_the_picture_of_the_readme_has_todays_evidence() -> None:
    assert (pictures.FOLDER / pictures.NAME).read_text(encoding="utf-8") == pictures.picture()


@pytest.mark.thorough
def test_every_finding_has_severity_cause_and_fix() -> None:
    assert {rule.code for rule in list_rules()} - {*findings_found()} == {"known-problem"}
    assert incomplete(findings_found()) == []
    assert all(problem.summary for _, problem in known_problems().values())


@pytest.mark.thorough
def test_every_error_has_exit_code_cause_and_fix() -> None:
    raised = set()
    for path in PACKAGE.rglob("*.py"):
        raised |= set(re.findall(r"\bcode=\"([a-z][a-z-]+)\"", path.read_text(encoding="utf-8")))
    assert len(raised) > 100
    assert raised - {*errors_found(), *findings_found()} == set()
    assert incomplete(errors_found()) == []


def test_a_cell_has_what_differs_and_no_markup() -> None:
    near = [Text("use --k 3 or less"), Text("use --k 4 or less"), Text("a|b <c>", ("peagle", "x"))]
    assert cell(near, 3) == r"use --k 3 or less; or a\|b \<c\>: `peagle x`"
    assert cell([Text(f"{OPEN}fix{CLOSE}")], 3) == ""
