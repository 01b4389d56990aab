"""Looks at whole catalogues, or at one file, for everything that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from toolkit.catalog.evidence import evidence_files, read_evidence
from toolkit.catalog.loading import (
    examine,
    folders,
    read_short_names,
    shown,
    table_file,
    target_files,
)
from toolkit.catalog.models import InstanceTable, RuntimeTable, Target
from toolkit.catalog.problems import BadFile, Problem

_TABLES: dict[str, type[BaseModel]] = {
    "runtimes.yaml": RuntimeTable,
    "instances.yaml": InstanceTable,
}


def check_catalog(own: Path | None = None) -> tuple[int, list[Problem]]:
    """How many files the catalogue has, bundled and own, and everything that is wrong with them."""
    targets = target_files(own)
    checked = [*targets.values(), *(table_file(name, own) for name in _TABLES)]
    problems = [problem for path in checked for problem in check_file(path)]
    problems += read_short_names(targets)[1]
    for folder in folders(own):
        problems += _never_read(folder)
    for path in evidence_files(own):
        problems += _check_evidence(path)
    return len(checked) + len(evidence_files(own)), problems


def check_file(path: Path) -> list[Problem]:
    """Everything that is wrong with one file; its name says what it must hold."""
    if path.suffix == ".json":
        return _check_evidence(path)
    return examine(path, _TABLES.get(path.name, Target))[1]


def _check_evidence(path: Path) -> list[Problem]:
    try:
        read_evidence(path)
    except BadFile as bad:
        return [bad.problem]
    return []


def _never_read(folder: Path) -> Iterator[Problem]:
    """Files that look like a catalogue's and lie where nobody reads them."""
    read = {*folder.glob("*/*.yaml"), *(folder / name for name in _TABLES)}
    for path in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")} - read):
        fix = "targets are <org>/<name>.yaml"
        yield Problem(shown(path), None, "", "is not read from this place", fix)
