"""The rules of the code's structure: what commands import, names, the API's table, and fixes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import FunctionType

import click
import pytest
from pydantic import BaseModel

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

WORDS = frozenset(
    {"peagle.deploy.costs.utc_text", "peagle.deploy.records.readable_records",
     "peagle.planning.limit.limit_text", "peagle.planning.observe.capture_text",
     "peagle.planning.observe.observability_text", "peagle.planning.plan.price_origin",
     "peagle.planning.rollout.cost_text", "peagle.speed.crossover.crossover_text",
     "peagle.vllm.defaults.method_title"}
)  # fmt: skip
"""Functions that commands call directly: they put a part of a plan or a verdict into words, most of
them also for findings and files. They read their arguments only, and decide nothing."""

COMMAND = re.compile(
    rf"\bpeagle (?:-|(?:{'|'.join(cli.list_commands(click.Context(cli)))})\b)|`(?:aws|hf) "
)
"""A command in a sentence: it would not keep the options that the user typed."""

FILE_TEXTS = {
    Path(path)
    for path in (
        "render/files.py", "render/formats/cloudformation.py", "render/formats/dockerfile.py",
        "render/formats/terraform.py", "render/formats/hyperpod.py", "render/formats/kserve.py",
        "render/kubernetes.py", "engine/container.py", "render/formats/compose.py",
    )
}  # fmt: skip
"""Modules with the text of files, which others than the user may read."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


@pytest.mark.thorough
def test_commands_call_work_functions_through_the_api_only() -> None:
    found = {
        (str(path.relative_to(TOOLKIT)), name)
        for path in python_files(TOOLKIT / "cli")
        for name in functions_imported(tree_of(path))
    }
    wrong = sorted(f"{path}: {name}" for path, name in found if name not in WORDS)
    assert not wrong, f"call these as peagle.api.NAME: {', '.join(wrong)}"
    assert {name for _, name in found} >= WORDS, "not used by the commands any more"


def test_functions_of_the_api_are_not_allowed_besides() -> None:
    assert not WORDS & {f"{module}.{name}" for module, name in api._SOURCES.values()}


def functions_imported(tree: ast.Module) -> Iterator[str]:
    """Functions and submodules that a module imports from work packages; types and constants
    start with an upper-case letter (``working_classes_called`` finds calls of types)."""
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


@pytest.mark.thorough
def test_commands_make_no_objects_that_work() -> None:
    wrong = [
        f"{path.relative_to(TOOLKIT)}:{line}: {name}"
        for path in python_files(TOOLKIT / "cli")
        for line, name in working_classes_called(tree_of(path))
    ]
    assert not wrong, f"leave these to functions of peagle.api: {', '.join(wrong)}"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from peagle.images import Docker\nDocker()", ["Docker"]),
        ("from peagle.planning import Plan\nPlan.model_validate({})", ["Plan.model_validate"]),
        ("from peagle.planning import Options\nOptions(pair='tiny')", []),
        ("from peagle.aws.errors import Missing\nMissing('gone')", []),
    ],
)
def test_plain_data_and_errors_are_no_work(source: str, found: list[str]) -> None:
    assert [name for _, name in working_classes_called(ast.parse(source))] == found


def working_classes_called(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of the calls of classes, and of their methods, from work packages. Errors and
    plain data may be made."""
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("peagle.")
        for alias in node.names
        if not is_infrastructure(str(node.module))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name, _, method = ast.unparse(node.func).partition(".")
            called = resolve_name(imported[name]) if name in imported else None
            if isinstance(called, type) and (method or not is_plain_data(called)):
                yield node.lineno, ast.unparse(node.func)


def is_plain_data(made: type) -> bool:
    """An error, or a dataclass, named tuple or pydantic model without public methods of its own."""
    own = [vars(base) for base in made.__mro__ if base.__module__.startswith("peagle")]
    works = any(
        isinstance(value, FunctionType | classmethod | staticmethod) and not name.startswith("_")
        for members in own
        for name, value in members.items()
    )
    is_data = is_dataclass(made) or hasattr(made, "_fields") or issubclass(made, BaseModel)
    return issubclass(made, Exception) or (is_data and not works)


def is_infrastructure(module: str) -> bool:
    return module in INFRASTRUCTURE or module.startswith("peagle.cli.")


@pytest.mark.thorough
def test_each_class_name_is_defined_once_with_or_without_a_leading_underscore() -> None:
    defined = defaultdict(list)
    for path in python_files(TOOLKIT, CONTAINER):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                defined[node.name.lstrip("_")].append(str(path.relative_to(ROOT)))
    twice = {name: paths for name, paths in defined.items() if len(paths) > 1}
    assert not twice


def test_every_name_of_the_api_is_a_function_of_its_module() -> None:
    functions = {name: getattr(api, name) for name in api.__all__}
    assert [name for name, function in functions.items() if not callable(function)] == []
    own = {name: {"plan": "make_plan"}.get(name, name) for name in functions}
    assert {name: function.__name__ for name, function in functions.items()} == own


def test_type_checkers_see_the_functions_of_the_api() -> None:
    imported = {
        (alias.name, node.module)
        for node in ast.walk(tree_of(TOOLKIT / "api.py"))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("peagle.")
        for alias in node.names
    }
    table = {(name, module) for module, name in api._SOURCES.values()}

    assert imported == table
    assert {"plan", "check", "deploy", "prove", "invoke", "destroy"} <= set(api.__all__)


@pytest.mark.thorough
def test_no_sentence_contains_a_command() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {found[0]}"
        for path in python_files(TOOLKIT)
        if path.relative_to(TOOLKIT) not in FILE_TEXTS
        for line, sentence in sentences(tree_of(path))
        if (found := COMMAND.search(sentence))
    ]
    assert not wrong, "use Fix(sentence, argv) or command_text(argv): " + "; ".join(wrong)


def sentences(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of the strings that a program prints, without docstrings and click's help;
    values in f-strings become one lower-case word."""
    ignored: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            ignored.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "epilog"):
            ignored |= set(ast.walk(node.value))
        elif isinstance(node, ast.JoinedStr) and node not in ignored:
            ignored |= set(node.values)
            words = (p.value if isinstance(p, ast.Constant) else "value" for p in node.values)
            yield node.lineno, "".join(map(str, words))
        elif node not in ignored and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


PARSERS = (
    "JSONDecoder", "json.JSONDecoder", "json.load", "json.loads", "marshal.loads", "pickle.load",
    "pickle.loads", "yaml.compose", "yaml.full_load", "yaml.load", "yaml.load_all",
    "yaml.safe_load", "yaml.safe_load_all", "yaml.unsafe_load",
)  # fmt: skip
BOUNDED = {
    CONTAINER / "json_reader.py": "the one reader of JSON",
    TOOLKIT / "catalog" / "documents.py": "the one reader of YAML",
    CONTAINER / "environment.py": "arguments are split as AWS's container does, byte for byte",
}


@pytest.mark.thorough
def test_documents_from_outside_pass_the_bounded_readers() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in python_files(TOOLKIT, CONTAINER)
        if path not in BOUNDED
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in PARSERS)
        or (isinstance(node, ast.ImportFrom) and node.module in ("json", "yaml", "pickle"))
    ]
    assert not wrong, f"use json_reader.read or catalog.documents: {'; '.join(wrong)}"


@pytest.mark.thorough
def test_pydantic_reads_only_what_the_json_reader_has_read() -> None:
    """``model_validate_json`` has no limits: its text is made of a document that was read."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(TOOLKIT)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith((".validate_json", ".model_validate_json"))
        and not ast.unparse(node.args[0]).startswith("json.dumps(")
    ]
    assert not wrong
