"""The layout in the documents: every package and module of the toolkit, in the order of imports."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from peagle import deploy

ROOT = Path(__file__).resolve().parents[3]
LAYOUTS = {
    "docs/architecture.md": re.compile(r"^\| (`toolkit/peagle/[^|]*)\|", re.MULTILINE),
    "CONTRIBUTING.md": re.compile(r"^[0-9]+\. (`peagle/[^:]*):", re.MULTILINE),
}
"""Document -> what lists parts of the toolkit, such as "`peagle/case.py`, `checks`"."""

_PART = re.compile(r"`(?:toolkit/)?(?:peagle/)?([a-z0-9_]+)(?:\.py)?`")


def _parts_shown(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [part for listed in LAYOUTS[document].findall(text) for part in _PART.findall(listed)]


def _layers(of: str) -> list[set[str]]:
    """What import-linter enforces for the contract with this layer, from the lowest on."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (
        one
        for one in configuration["tool"]["importlinter"]["contracts"]
        if of in one.get("layers", ())
    )
    layers = (layer.replace("peagle.", "") for layer in reversed(contract["layers"]))
    return [set(re.findall(r"\w+", layer)) for layer in layers]


@pytest.mark.parametrize("document", LAYOUTS)
def test_a_document_lists_each_part_of_the_toolkit_once(document: str) -> None:
    folder = ROOT / "toolkit" / "peagle"
    packages = {one.parent.name for one in folder.glob("*/__init__.py")}
    modules = {one.stem for one in folder.glob("*.py") if one.stem != "__init__"}

    assert sorted(_parts_shown(document)) == sorted(packages | modules)


@pytest.mark.parametrize("document", LAYOUTS)
def test_a_part_imports_only_those_listed_before_it(document: str) -> None:
    """Both documents say so."""
    layers = _layers("peagle.cli")
    heights = [
        next(height for height, layer in enumerate(layers) if part in layer)
        for part in _parts_shown(document)
    ]

    assert len(heights) > 20
    assert heights == sorted(heights)


def test_deploy_describes_each_of_its_modules_in_the_order_of_imports() -> None:
    described = re.findall(r"^ {4}(\w+) ", deploy.__doc__ or "", re.MULTILINE)
    layers = _layers("apply")

    assert len(described) == len(set(described))
    assert set(described) == set().union(*layers), "all modules, by an exhaustive contract"
    heights = [next(n for n, one in enumerate(layers) if name in one) for name in described]
    assert heights == sorted(heights)


def test_infra_has_what_the_architecture_says() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `infra/` \|.*$", text, re.MULTILINE)
    folders = sorted(one.name for one in (ROOT / "infra").iterdir() if one.is_dir())

    assert [one for one in folders if one not in row.lower()] == []
