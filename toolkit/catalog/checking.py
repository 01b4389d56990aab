"""Looks at whole catalogues, or at one file, for everything that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from toolkit.catalog.evidence import read_evidence
from toolkit.catalog.loading import (
    examine,
    read_short_names,
    table_file,
    target_files,
)
from toolkit.catalog.models import SpeedRun, Target
from toolkit.catalog.places import evidence_files, folders, shown
from toolkit.catalog.problems import BadFile, Problem
from toolkit.catalog.speeds import read_speeds
from toolkit.catalog.storage import StorageTable
from toolkit.catalog.tables import InstanceTable, RuntimeTable, VersionRuleTable
from toolkit.errors import nearest

_TABLES: dict[str, type[BaseModel]] = {
    "runtimes.yaml": RuntimeTable,
    "instances.yaml": InstanceTable,
    "storage.yaml": StorageTable,
    "version_rules.yaml": VersionRuleTable,
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
    problems += _misnamed(own, targets)
    return len(checked) + len(evidence_files(own)), problems


def check_file(path: Path) -> list[Problem]:
    """Everything that is wrong with one file; its name says what it must hold."""
    if path.suffix == ".json":
        return _check_evidence(path)
    return examine(path, _TABLES.get(path.name, Target))[1]


def _check_evidence(path: Path) -> list[Problem]:
    try:
        read_evidence(path)
        read_speeds(path)
    except BadFile as bad:
        return [bad.problem]
    return []


def _misnamed(own: Path | None, targets: dict[str, Path]) -> Iterator[Problem]:
    """Speeds of what the catalogue does not have, which nobody would find.

    Only of the user's own folder when there is one: it may replace what bundled speeds are of.
    """
    table = examine(table_file("instances.yaml", own), InstanceTable)[0]
    gpus = {instance.gpu for instance in table.instances} if table else set()
    for path in sorted(folders(own)[-1].glob("evidence/*.json")):
        try:
            run = read_speeds(path)
        except BadFile:
            continue  # told already
        if run is None:
            continue
        names = _names(run, targets)
        for key, name, known in names if not table else [("gpu", run.gpu, gpus), *names]:
            if name not in known:
                hint = nearest(name, known) or f"there are {', '.join(sorted(known))}"
                yield Problem(
                    shown(path), None, key, f"there is no {name!r} in the catalogue", hint
                )


def _names(run: SpeedRun, targets: dict[str, Path]) -> list[tuple[str, str, set[str]]]:
    """Key, name, and the names that there are, of what was measured."""
    found = [("pair", run.target, set(targets))]
    target = examine(targets[run.target], Target)[0] if run.target in targets else None
    if target is not None:
        known = {name for d in target.drafters for name in (d.name, d.weights) if name}
        for name in sorted({row.drafter for row in run.speeds if row.drafter is not None}):
            found.append(("speeds", name, known))
    return found


def _never_read(folder: Path) -> Iterator[Problem]:
    """Files that look like a catalogue's and lie where nobody reads them."""
    read = {*folder.glob("*/*.yaml"), *(folder / name for name in _TABLES)}
    for path in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")} - read):
        fix = "targets are <org>/<name>.yaml"
        yield Problem(shown(path), None, "", "is not read from this place", fix)
