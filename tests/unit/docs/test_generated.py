"""docs/cli.md and docs/errors.md are what the code says, and no code lacks a cause or a fix."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support import bundled_evidence
from tests.unit.checks.test_finding_codes import codes_in
from tests.unit.local.test_local_up import ABOUT_ANY_ENGINE, ABOUT_SAGEMAKER
from tools.docs.codes import Code, errors_found, findings_found, incomplete, known_problems
from tools.docs.markdown import cell
from tools.docs.pages import PAGES
from tools.docs.syntax import Place, bodies
from tools.docs.templates import CLOSE, OPEN, PACKAGE, Scope, Text, texts


@pytest.fixture(scope="module", autouse=True)
def _bundled() -> Iterator[None]:
    with bundled_evidence():
        yield


@pytest.mark.thorough
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_generated_chapter_is_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path](), "run `make docs`"


@pytest.mark.thorough
def test_every_warning_and_note_of_a_plan_concerns_a_local_engine_or_not() -> None:
    """A new code belongs in one of the two sets, and in ``peagle.images.build`` if it is about
    SageMaker."""
    of_plans = {
        code
        for code, found in findings_found().items()
        if {"warning", "note"} & set(found.levels)
        and any(file.startswith(("planning/", "checks/")) for file in found.files)
    }
    assert of_plans == ABOUT_ANY_ENGINE | ABOUT_SAGEMAKER
    assert not ABOUT_ANY_ENGINE & ABOUT_SAGEMAKER


@pytest.mark.thorough
def test_every_finding_has_severity_cause_and_fix() -> None:
    emitted = {str(one) for path in PACKAGE.rglob("*.py") for one in codes_in(path) - {None}}

    assert {*findings_found()} == emitted - {"known-problem"}  # whose codes are the catalogue's
    assert incomplete(findings_found()) == []
    assert all(problem.summary for _, problem in known_problems().values())


@pytest.mark.thorough
def test_every_error_has_exit_code_cause_and_fix() -> None:
    given = set()
    for path in PACKAGE.rglob("*.py"):
        given |= set(re.findall(r"\bcode=\"([a-z][a-z-]+)\"", path.read_text(encoding="utf-8")))

    assert len(given) > 100
    assert given - {*errors_found(), *findings_found()} == set()
    assert incomplete(errors_found()) == []


def test_a_code_without_cause_or_fix_is_found() -> None:
    said = [Text("it is broken")]
    unsaid = [Text(f"{OPEN}message{CLOSE}")]
    found = {
        "whole": Code(["error"], said, said),
        "no-cause": Code(["error"], unsaid, said),
        "no-fix": Code(["error"], said, []),
        "no-severity": Code([], said, said),
    }

    assert incomplete(found) == ["no-cause", "no-fix", "no-severity"]


SOURCE = """
MOST = 5
FIX = "use fewer"

def review(count, name):
    fix = FIX
    if count > MOST:
        message = f"{count} of {name} are more than {MOST}"
        yield message, fix
        return
    if name:
        message = f"{name} is wrong"
    else:
        message = "it has no name"
        fix = f"add {name.lower()}" if count else other(name)
    print(message, fix)
"""


def test_a_text_is_what_reaches_its_place(tmp_path: Path) -> None:
    """Branches that were left count no more; what only a running program knows is a placeholder."""
    file = tmp_path / "sample.py"
    file.write_text(SOURCE)
    module = ModuleType("sample")
    vars(module).update(MOST=5, FIX="use fewer")
    function, _ = sorted(bodies(file), key=lambda body: body.function is None)
    places: dict[type, tuple[ast.AST, Place]] = {
        type(node): (node, place)
        for node, place in function.nodes
        if isinstance(node, ast.Yield)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "print")
    }

    def shown(node: ast.expr, kind: type) -> list[str]:
        found = texts(node, Scope(module, function, places[kind][1]))
        return [re.sub(f"[{OPEN}{CLOSE}]", "*", one.sentence) for one in found]

    first, last = places[ast.Yield][0], places[ast.Call][0]
    assert isinstance(first, ast.Yield)
    assert isinstance(first.value, ast.Tuple)
    assert isinstance(last, ast.Call)
    assert shown(first.value.elts[0], ast.Yield) == ["*count* of *name* are more than 5"]
    assert shown(first.value.elts[1], ast.Yield) == ["use fewer"]
    assert shown(last.args[0], ast.Call) == ["*name* is wrong", "it has no name"]
    assert shown(last.args[1], ast.Call) == ["use fewer", "add *name*", "*name*"]


def test_a_cell_has_what_differs_and_no_markup() -> None:
    near = [Text("use --k 3 or less"), Text("use --k 4 or less"), Text("a|b <c>", ("peagle", "x"))]

    assert cell(near, 3) == r"use --k 3 or less; or a\|b \<c\>: `peagle x`"
    assert cell([Text(f"{OPEN}fix{CLOSE}")], 3) == ""
