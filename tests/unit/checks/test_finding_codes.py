"""A finding code is emitted in exactly one file."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import peagle

PACKAGE = Path(peagle.__file__).parent
FINDINGS = "peagle.findings"

FROM_DATA = {"checks/registry.py", "checks/rules/version.py"}
"""Files whose findings carry the code of a rule or of an entry of the catalogue."""


@pytest.mark.thorough
def test_a_code_is_emitted_in_one_file() -> None:
    files: dict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        for code in codes_in(path) - {None}:
            files[str(code)].add(path.relative_to(PACKAGE).as_posix())
    assert len(files) > 100
    assert {code: where for code, where in files.items() if len(where) > 1} == {}


@pytest.mark.thorough
def test_every_code_is_a_literal_or_a_constant() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).as_posix() not in FROM_DATA:
            assert None not in codes_in(path), path


@cache
def codes_in(path: Path) -> frozenset[str | None]:
    """The codes of the findings that this file makes; ``None`` if a code is not a constant."""
    return frozenset(_codes_in(path))


def _codes_in(path: Path) -> Iterator[str | None]:
    text = path.read_text(encoding="utf-8")
    if FINDINGS not in text and "@rule(" not in text:
        return  # most files, which need not be parsed
    tree = ast.parse(text)
    makers = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == FINDINGS
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "rule":
            yield value_of(node.args[0], path)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            argument = code_argument(makers.get(node.func.id), node)
            if argument is not None:
                yield value_of(argument, path)


def code_argument(maker: str | None, call: ast.Call) -> ast.expr | None:
    """The argument of this call that is a finding's code."""
    if maker == "Finding":
        return next((word.value for word in call.keywords if word.arg == "code"), None)
    position = {"error": 0, "warning": 0, "note": 0, "finding": 1}.get(maker or "")
    return call.args[position] if position is not None and len(call.args) > position else None


def value_of(argument: ast.expr, path: Path) -> str | None:
    """The text of a literal, or of a constant of the module."""
    if isinstance(argument, ast.Constant):
        return str(argument.value)
    if isinstance(argument, ast.Name):
        name = ".".join(("peagle", *path.relative_to(PACKAGE).with_suffix("").parts))
        value = getattr(import_module(name), argument.id, None)
        return value if isinstance(value, str) else None
    return None
