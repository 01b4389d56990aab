"""From the files of a catalogue folder to a Catalog.

    <folder>/<org>/<name>.yaml    one target; its path is its id
    <folder>/runtimes.yaml        vLLM versions and images
    <folder>/instances.yaml       instance types
    <folder>/storage.yaml         prices of keeping weights in S3
    <folder>/version_rules.yaml   what holds on some vLLM versions only
    <folder>/evidence/*.json      measured results (see evidence.py, speeds.py)

A folder of the user's own has the same layout. Its targets are added to the bundled ones or
replace those of the same id, and its tables replace the bundled ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from toolkit.catalog.documents import read_document
from toolkit.catalog.models import Catalog, Target
from toolkit.catalog.places import folders, shown
from toolkit.catalog.problems import BadFile, Problem, catalog_error
from toolkit.catalog.rules import (
    Broken,
    broken_in_instances,
    broken_in_runtimes,
    broken_in_target,
)
from toolkit.catalog.speeds import Speeds
from toolkit.catalog.storage import StorageTable, broken_in_storage
from toolkit.catalog.tables import InstanceTable, RuntimeTable, VersionRuleTable
from toolkit.catalog.validation import problem_at, validate
from toolkit.catalog.version_rules import broken_in_version_rules

Model = TypeVar("Model", bound=BaseModel)

_SHORT_NAME = re.compile(r"^short_name:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_HEAD = 1024
_RULES: dict[type[BaseModel], Callable[..., Iterator[Broken]]] = {
    Target: broken_in_target,
    RuntimeTable: broken_in_runtimes,
    InstanceTable: broken_in_instances,
    StorageTable: broken_in_storage,
    VersionRuleTable: broken_in_version_rules,
}


class Targets(Mapping[str, Target]):
    """Targets by id, each read from its file when it is first asked for.

    Reading raises CatalogError when the file is wrong. ``short_names`` leads to the ids.
    """

    def __init__(self, files: Mapping[str, Path], short_names: Mapping[str, str]) -> None:
        self.short_names = short_names
        self._files = files
        self._read: dict[str, Target] = {}

    def __getitem__(self, target_id: str) -> Target:
        if target_id not in self._read:
            self._read[target_id] = _read(self._files[target_id], Target)
        return self._read[target_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def load_catalog(own: Path | None = None) -> Catalog:
    """The bundled catalogue, with what the folder ``own`` adds to it or replaces in it.

    Raises CatalogError for a wrong table, or two targets of one short name; a wrong target is
    told when it is asked for.
    """
    files = target_files(own)
    short_names, problems = read_short_names(files)
    if problems:
        raise catalog_error(problems)
    return Catalog(
        targets=Targets(files, short_names),
        runtimes=_read(table_file("runtimes.yaml", own), RuntimeTable),
        instances=_read(table_file("instances.yaml", own), InstanceTable),
        origins={target_id: shown(path) for target_id, path in files.items()},
        speeds=Speeds(own),
        version_rules=_read(table_file("version_rules.yaml", own), VersionRuleTable),
    )


def load_storage(own: Path | None = None) -> StorageTable:
    """The prices of storage. Raises CatalogError for a wrong table."""
    return _read(table_file("storage.yaml", own), StorageTable)


def target_files(own: Path | None) -> dict[str, Path]:
    """The file of every target, by id, in the order of the ids."""
    files: dict[str, Path] = {}
    for folder in folders(own):
        found = {f"{path.parent.name}/{path.stem}": path for path in folder.glob("*/*.yaml")}
        replaced = {target_id.lower() for target_id in found}
        files = {key: path for key, path in files.items() if key.lower() not in replaced} | found
    return dict(sorted(files.items(), key=lambda item: item[0].lower()))


def read_target(path: Path) -> Target:
    """The target in the file ``path``; raises CatalogError when the file is wrong."""
    return _read(path, Target)


def table_file(name: str, own: Path | None) -> Path:
    """The user's own table, when there is one; else the bundled one."""
    return next(folder / name for folder in reversed(folders(own)) if (folder / name).is_file())


def examine(path: Path, model: type[Model]) -> tuple[Model | None, list[Problem]]:
    """What the file ``path`` holds, and everything that is wrong with it."""
    try:
        document = read_document(path, shown(path))
    except BadFile as bad:
        return None, [bad.problem]
    entry, problems = validate(document, model)
    if entry is not None:
        broken = _RULES[model](entry, path.absolute())
        problems = [problem_at(document, *rule) for rule in broken]
    return entry, problems


def read_short_names(files: Mapping[str, Path]) -> tuple[dict[str, str], list[Problem]]:
    """Ids by short name, and a problem for every name that a second target takes.

    From a glance at each file for a ``short_name`` at the left margin; whether the file is right
    is found when it is read. Bundled targets come first, whatever their ids: of two files the
    user's own is to be changed.
    """
    (bundled,) = folders(None)
    ids: dict[str, str] = {}
    problems: list[Problem] = []
    own_last = sorted(files.items(), key=lambda item: not item[1].is_relative_to(bundled))
    for target_id, path in own_last:
        found = _short_name_in(path)
        if found and found[1] in ids:
            other = ids[found[1]]
            whose = "the bundled " if files[other].is_relative_to(bundled) else ""
            message = f"{found[1]} is already the short name of {whose}{other}"
            problems.append(Problem(shown(path), None, "short_name", message, "choose another"))
        elif found:
            ids[found[1]] = target_id
    return ids, problems


def _short_name_in(path: Path) -> re.Match[str] | None:
    """Mostly it stands in the first lines, and there may be thousands of files."""
    with path.open(encoding="utf-8", errors="replace") as stream:
        head = stream.read(_HEAD)
        found = _SHORT_NAME.search(head)
        if found and found.end() < len(head):
            return found
        return _SHORT_NAME.search(head + stream.read())


def _read(path: Path, model: type[Model]) -> Model:
    entry, problems = examine(path, model)
    if entry is None or problems:
        raise catalog_error(problems)
    return entry
