"""Documents from outside pass the bounded readers."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLKIT = ROOT / "toolkit" / "peagle"
CONTAINER = ROOT / "containers" / "peagle_serve"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


PARSERS = (
    "JSONDecoder", "json.JSONDecoder", "json.load", "json.loads", "marshal.loads", "pickle.load",
    "pickle.loads", "yaml.compose", "yaml.full_load", "yaml.load", "yaml.load_all",
    "yaml.safe_load", "yaml.safe_load_all", "yaml.unsafe_load",
)  # fmt: skip
BOUNDED = {
    CONTAINER / "json_reader.py": "the one reader of JSON",
    TOOLKIT / "catalog" / "documents.py": "the one reader of YAML",
    CONTAINER / "environment.py": "arguments are split as AWS's container does, byte for byte",
    TOOLKIT / "aws" / "ecr.py": "documents of this package",
    TOOLKIT / "aws" / "prices.py": "an answer of AWS, which botocore has read",
    TOOLKIT / "render" / "formats" / "cloudformation.py": "templates of this package",
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
    """``model_validate_json`` limits depth, not size: its text is made of a document that was read.
    Evidence, of which planning reads megabytes, is read with a limit and parsed once."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(TOOLKIT)
        if path != TOOLKIT / "catalog" / "evidence.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith((".validate_json", ".model_validate_json"))
        and not ast.unparse(node.args[0]).startswith("json.dumps(")
    ]
    assert not wrong
