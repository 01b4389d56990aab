"""The rules of the code's structure: what commands import, names, the API's table, and fixes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from peagle import api
from peagle.cli.main import cli

ROOT = Path(__file__).parents[2]
TOOLKIT = ROOT / "toolkit" / "peagle"
CONTAINER = ROOT / "containers" / "peagle_serve"

INFRASTRUCTURE = frozenset(
    {"peagle.cli", "peagle.data", "peagle.errors", "peagle.findings", "peagle.s3uri",
     "peagle.store", "peagle.text"}
)  # fmt: skip
"""Modules whose functions commands may call directly; the others are called through the API."""

FIX_ARGUMENT = {
    "Fix": 0, "error": 3, "warning": 3, "note": 3, "finding": 4, "UserError": 1,
    "CatalogError": 1, "CheckpointError": 1, "HubFailed": 1, "NotFound": 1, "PlanFileError": 1,
    "EngineMissing": 1, "DockerMissing": 1, "Refused": 1, "NotProved": 1, "Unsupported": 1,
    "CloudError": 1, "EngineError": 1, "PeagleError": 1,
}  # fmt: skip
"""Callables that take a fix, and its position among their arguments."""

PLACEHOLDER = re.compile(r"[A-Z]{2,}|\.\.\.")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def test_commands_call_work_functions_through_the_api_only() -> None:
    wrong = [
        f"{path.name}: {name}"
        for path in sorted((TOOLKIT / "cli").glob("*.py"))
        for name in functions_imported(tree_of(path))
    ]
    assert not wrong, f"call these as peagle.api.NAME: {', '.join(wrong)}"


def functions_imported(tree: ast.Module) -> Iterator[str]:
    """Functions and submodules that a module imports from work packages; types and constants
    start with an upper-case letter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("peagle."))
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        if node.module == "peagle":
            modules = (f"peagle.{alias.name}" for alias in node.names)
            allowed = {*INFRASTRUCTURE, "peagle.api", "peagle.__version__"}
            yield from (module for module in modules if module not in allowed)
        elif node.module.startswith("peagle.") and not is_infrastructure(node.module):
            yield from (f"{node.module}.{a.name}" for a in node.names if not a.name[0].isupper())


def is_infrastructure(module: str) -> bool:
    return module in INFRASTRUCTURE or module.startswith("peagle.cli.")


def test_each_public_class_name_is_defined_once() -> None:
    defined = defaultdict(list)
    for path in python_files(TOOLKIT, CONTAINER):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                defined[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert not twice


@pytest.mark.parametrize("name", api.__all__)
def test_every_name_of_the_api_is_a_function_of_its_module(name: str) -> None:
    function = getattr(api, name)
    assert callable(function)
    assert function.__name__ == name


def test_a_complete_command_is_an_argv_and_not_part_of_a_sentence() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {command}"
        for path in python_files(TOOLKIT)
        for line, sentence in fix_sentences(tree_of(path))
        for command in complete_commands(sentence)
    ]
    assert not wrong, "use Fix(sentence, argv): " + "; ".join(wrong)


def fix_sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of each fix in a call, as an argument or by a name of the same module."""
    assigned: dict[str, list[ast.expr]] = defaultdict(list)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id].append(node.value)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
        position = FIX_ARGUMENT.get(name, len(node.args))
        given = [*node.args[position : position + 1]]
        given += [keyword.value for keyword in node.keywords if keyword.arg in ("fix", "sentence")]
        for value in given:
            values = assigned[value.id] if isinstance(value, ast.Name) else [value]
            yield from ((each.lineno, text) for each in values for text in texts(each))


def texts(value: ast.expr) -> Iterator[str]:
    """The texts that a fix may be; values in f-strings become one lower-case word."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        yield value.value
    elif isinstance(value, ast.JoinedStr):
        yield "".join(
            str(p.value) if isinstance(p, ast.Constant) else "value" for p in value.values
        )
    elif isinstance(value, ast.IfExp):
        yield from (*texts(value.body), *texts(value.orelse))
    elif isinstance(value, ast.BoolOp):
        yield from (text for each in value.values for text in texts(each))


def complete_commands(sentence: str) -> Iterator[str]:
    """The `peagle ...` commands in the sentence with all their arguments and no placeholder."""
    for command in re.findall(r"`(peagle [^`]+)`|: (peagle [^;,]+)", sentence):
        text = command[0] or command[1]
        if not PLACEHOLDER.search(text) and is_complete(text.split()[1:]):
            yield text


def is_complete(words: list[str]) -> bool:
    """Whether ``words`` name a command and give each argument that it requires."""
    command: click.Command | None = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words:
        command, words = command.get_command(context, words[0]), words[1:]
    if command is None or isinstance(command, click.Group):
        return False
    required = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    return len([word for word in words if not word.startswith("-")]) >= len(required)
