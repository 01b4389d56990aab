"""Loads a catalogue from its folders, and checks all files of one.

    <folder>/<org>/<name>.yaml    one target; its path is its id
    <folder>/runtimes.yaml        vLLM versions and images
    <folder>/instances.yaml       instance types
    <folder>/storage.yaml         prices of storage in S3
    <folder>/speed_model.yaml     constants of the performance model
    <folder>/version_rules.yaml   facts that hold on some vLLM versions only
    <folder>/images.yaml          images in place of those of runtimes.yaml (catalog refresh)
    <folder>/prices.yaml          prices in place of those of instances.yaml (catalog refresh)
    <folder>/evidence/*.json      measured results (see evidence.py)

A user's own folder has the same layout. Its targets are added to the bundled ones or replace those
of the same id, and its tables replace the bundled ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from peagle.catalog.consistency import above_trained, rows_of
from peagle.catalog.documents import (
    LARGEST_FILE,
    BadFile,
    Problem,
    catalog_error,
    display_path,
    evidence_files,
    folders,
    parse_document,
    read_bytes,
    read_document,
)
from peagle.catalog.evidence import Speeds, read_evidence, read_speeds
from peagle.catalog.schema import NO_GPU, Catalog, Target
from peagle.catalog.speed_model import SpeedModel
from peagle.catalog.starts import load_starts, read_starts
from peagle.catalog.tables import (
    ImageTable,
    InstanceTable,
    PriceTable,
    RuntimeTable,
    StorageTable,
    VersionRuleTable,
)
from peagle.catalog.validation import (
    Violation,
    instance_violations,
    problem_at,
    runtime_violations,
    speed_model_violations,
    storage_violations,
    target_violations,
    validate,
    version_rule_violations,
)
from peagle.errors import nearest

Model = TypeVar("Model", bound=BaseModel)

_SHORT_NAME = re.compile(r"^short_name:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)
_WEIGHTS = re.compile(r"^weights:[ \t]*[\"']?([^\s\"'#]+)", re.MULTILINE)


def _no_rules(_table: BaseModel, _path: Path) -> Iterator[Violation]:
    return iter(())


_RULES: dict[type[BaseModel], Callable[..., Iterator[Violation]]] = {
    Target: target_violations,
    RuntimeTable: runtime_violations,
    InstanceTable: instance_violations,
    StorageTable: storage_violations,
    VersionRuleTable: version_rule_violations,
    SpeedModel: speed_model_violations,
}


class Targets(Mapping[str, Target]):
    """Targets by id, each read from its file at first use, which raises CatalogError if the file
    is wrong. ``short_names`` maps short names to ids."""

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

    @cached_property
    def weights(self) -> dict[str, str]:
        """The weights of each target, by its id, without those of files that cannot be read. As
        short names they are found without parsing the files."""
        texts = {target_id: _text(path) or "" for target_id, path in self._files.items()}
        matches = {target_id: _WEIGHTS.search(text) for target_id, text in texts.items()}
        return {target_id: match[1] for target_id, match in matches.items() if match}


_TABLES: dict[str, type[BaseModel]] = {
    "runtimes.yaml": RuntimeTable,
    "instances.yaml": InstanceTable,
    "storage.yaml": StorageTable,
    "version_rules.yaml": VersionRuleTable,
    "speed_model.yaml": SpeedModel,
    "images.yaml": ImageTable,
    "prices.yaml": PriceTable,
}
_UPDATED_BY = {"runtimes.yaml": "images.yaml", "instances.yaml": "prices.yaml"}
"""Tables written by hand -> the files of a refresh, which need not exist."""


def load_catalog(user_folder: Path | None = None) -> Catalog:
    """The bundled catalogue, with what ``user_folder`` adds to it or replaces in it.

    Raises CatalogError for a wrong table and for two targets with the same short name; a wrong
    target raises it when it is first used.
    """
    files = target_files(user_folder)
    short_names, problems = read_short_names(files)
    if problems:
        raise catalog_error(problems)
    targets = Targets(files, short_names)
    return Catalog(
        targets=targets,
        runtimes=_updated("runtimes.yaml", user_folder, RuntimeTable, ImageTable),
        instances=_updated("instances.yaml", user_folder, InstanceTable, PriceTable),
        origins={target_id: display_path(path) for target_id, path in files.items()},
        speeds=Speeds(user_folder, targets),
        read_starts=partial(load_starts, user_folder),
        speed_model=_read(table_file("speed_model.yaml", user_folder), SpeedModel),
        version_rules=_read(table_file("version_rules.yaml", user_folder), VersionRuleTable),
        is_extended=user_folder is not None,
    )


def _updated(
    name: str,
    user_folder: Path | None,
    model: type[Model],
    refreshed: type[ImageTable] | type[PriceTable],
) -> Model:
    table = _read(table_file(name, user_folder), model)
    update = refreshed_file(name, user_folder)
    return _read(update, refreshed).added_to(table) if update else table  # type: ignore


def load_storage(user_folder: Path | None = None) -> StorageTable:
    """The prices of storage. Raises CatalogError for a wrong table."""
    return _read(table_file("storage.yaml", user_folder), StorageTable)


def target_files(user_folder: Path | None) -> dict[str, Path]:
    """The file of every target, by id, in the order of the ids."""
    return _targets_in(folders(user_folder))


def _targets_in(folders: Iterable[Path]) -> dict[str, Path]:
    """As ``target_files``, of these folders; a later one takes precedence."""
    files: dict[str, Path] = {}
    for folder in folders:
        in_folder = {f"{path.parent.name}/{path.stem}": path for path in folder.glob("*/*.yaml")}
        replaced = {target_id.lower() for target_id in in_folder}
        kept = {key: path for key, path in files.items() if key.lower() not in replaced}
        files = kept | in_folder
    return dict(sorted(files.items(), key=lambda item: item[0].lower()))


def table_file(name: str, user_folder: Path | None) -> Path:
    """The user's own table if there is one, else the bundled one."""
    return next(
        folder / name for folder in reversed(folders(user_folder)) if (folder / name).is_file()
    )


def refreshed_file(name: str, user_folder: Path | None) -> Path | None:
    """What a refresh wrote for the table ``name``: in the user's folder, else beside the table."""
    update = _UPDATED_BY[name]
    places = (folders(user_folder)[-1] / update, table_file(name, user_folder).with_name(update))
    return next((path for path in places if path.is_file()), None)


def validate_file(
    path: Path, model: type[Model], text: str | None = None
) -> tuple[Model | None, list[Problem]]:
    """The content of the file ``path``, ``None`` if it is not valid, and all its problems.

    ``text`` is the content of a file that is not written yet.
    """
    file = display_path(path)
    try:
        document = read_document(path, file) if text is None else parse_document(text, file)
    except BadFile as bad:
        return None, [bad.problem]
    entry, problems = validate(document, model)
    if entry is not None:
        violations = _RULES.get(model, _no_rules)(entry, path.absolute())
        problems = [problem_at(document, *violation) for violation in violations]
    return entry, problems


def read_short_names(files: Mapping[str, Path]) -> tuple[dict[str, str], list[Problem]]:
    """Short name -> id, and a problem for each name that a second target uses.

    Only ``short_name`` at the left margin of each file is read: for 2,000 targets that takes less
    than 0.3 s, and parsing all files 4 s, of which a plan needs one. Bundled targets come first: of
    a bundled and an own file with the same short name, the user's own has the problem.
    """
    (bundled,) = folders(None)
    ids: dict[str, str] = {}
    problems: list[Problem] = []
    own_last = sorted(files.items(), key=lambda item: not item[1].is_relative_to(bundled))
    for target_id, path in own_last:
        name = _short_name_in(path)
        if name in ids:
            problems.append(_same_short_name(name, path, ids[name], files[ids[name]]))
        elif name:
            ids[name] = target_id
    return ids, problems


def _short_name_in(path: Path) -> str:
    """The short name in a target's file, without parsing it; empty if it has none."""
    match = _SHORT_NAME.search(_text(path) or "")
    return match[1] if match else ""


def _same_short_name(name: str, path: Path, other_id: str, other: Path) -> Problem:
    """The problem of a file whose short name ``other`` has too. An own file must leave the name to
    the bundled one; of two files of one catalogue either may change."""
    (bundled,) = folders(None)
    bundled = bundled.resolve()
    is_own, other_is_own = (not f.resolve().is_relative_to(bundled) for f in (path, other))
    if is_own and not other_is_own:
        message = f"{name} is already the short name of the bundled {other_id}"
        fix = "choose another name"
    else:
        message = f"{name} is also the short name in {display_path(other)}"
        fix = "choose another name in one of the two files"
    return Problem(display_path(path), None, "short_name", message, fix)


def _text(path: Path) -> str | None:
    """The text of a file; ``None`` if it cannot be read, which is reported where it is parsed."""
    try:
        return read_bytes(path, LARGEST_FILE).decode("utf-8", "replace")
    except BadFile:
        return None


def _read(path: Path, model: type[Model]) -> Model:
    entry, problems = validate_file(path, model)
    if entry is None or problems:
        raise catalog_error(problems)
    return entry


def check_catalog(user_folder: Path | None = None) -> tuple[list[Path], list[Problem]]:
    """The files of the catalogue, bundled and own, and all their problems."""
    targets = target_files(user_folder)
    tables = [table_file(name, user_folder) for name in _TABLES if name not in _UPDATED_BY.values()]
    updates = [path for name in _UPDATED_BY if (path := refreshed_file(name, user_folder))]
    checked = [*targets.values(), *tables, *updates, *evidence_files(user_folder)]
    problems = [problem for path in checked for problem in _file_problems(path)]
    problems += read_short_names(targets)[1]
    for folder in folders(user_folder):
        problems += _never_read(folder)
    problems += _misnamed(user_folder, targets)
    return checked, problems


def check_catalog_file(path: Path, user_folder: Path | None = None) -> list[Problem]:
    """All problems of one file; its name decides what it must hold.

    A target's short name may be that of no other one of the bundled catalogue, of the folder
    ``user_folder``, and of the folder that the file is in.
    """
    problems = _file_problems(path)
    is_target = path.suffix != ".json" and path.name not in _TABLES
    return problems if problems or not is_target else list(_taken_short_name(path, user_folder))


def _taken_short_name(path: Path, user_folder: Path | None) -> Iterator[Problem]:
    """Targets with the short name of the valid one in the file ``path``."""
    folder, searched = path.resolve().parent.parent, folders(user_folder)
    if folder not in (each.resolve() for each in searched):
        searched.append(folder)
    name, this = _short_name_in(path), f"{path.resolve().parent.name}/{path.stem}".lower()
    for target_id, other in _targets_in(searched).items():
        if target_id.lower() != this and _short_name_in(other) == name:
            yield _same_short_name(name, path, target_id, other)


def _file_problems(path: Path) -> list[Problem]:
    """All problems of the content of one file."""
    if path.suffix != ".json":
        return validate_file(path, _TABLES.get(path.name, Target))[1]
    try:
        read_evidence(path)
        read_speeds(path)
        read_starts(path)
    except BadFile as bad:
        return [bad.problem]
    return []


def holds_measurements(path: Path) -> bool:
    """Whether the catalogue reads anything from this valid JSON file."""
    return bool(read_evidence(path) or read_speeds(path) or read_starts(path))


def _misnamed(user_folder: Path | None, targets: dict[str, Path]) -> Iterator[Problem]:
    """Results of a pair or GPU that the catalogue does not have, so that no plan would use them,
    and those with a K for which the drafter was not trained.

    With an own folder only its files are checked: it may replace the targets of bundled results.
    """
    table = validate_file(table_file("instances.yaml", user_folder), InstanceTable)[0]
    for path in sorted(folders(user_folder)[-1].glob("evidence/*.json")):
        try:
            run, results = read_speeds(path), read_evidence(path)
        except BadFile:
            continue  # reported by check_catalog
        used: dict[str, list[tuple[str, str | None, int]]] = {}
        for number, result in enumerate(results):
            key = f"results[{number}]"
            used.setdefault(result.target, []).append((key, result.drafter, result.k))
        names: list[tuple[str, str, set[str]]] = []
        if run is not None:
            used.setdefault(run.target, []).extend(rows_of(run))
            if table:
                gpus = {NO_GPU, *(instance.gpu for instance in table.instances)}
                names.append(("gpu", run.gpu, gpus))
        for target_id, rows in used.items():
            names.append(("pair", target_id, set(targets)))
            file = targets.get(target_id)
            target = validate_file(file, Target)[0] if file else None
            if target is None:
                continue
            valid_names = {name for d in target.drafters for name in (d.name, d.weights) if name}
            drafters = {(key.partition("[")[0], name) for key, name, _ in rows if name is not None}
            names += [(key, name, valid_names) for key, name in sorted(drafters)]
            for problem in above_trained(rows, target.drafters):
                yield Problem(display_path(path), None, *problem)
        for key, name, valid_names in names:
            if name not in valid_names:
                hint = nearest(name, valid_names) or f"known: {', '.join(sorted(valid_names))}"
                message = f"{name!r} is not in the catalogue"
                yield Problem(display_path(path), None, key, message, hint)


def _never_read(folder: Path) -> Iterator[Problem]:
    """YAML files in places where the catalogue reads none."""
    read = {*folder.glob("*/*.yaml"), *(folder / name for name in _TABLES)}
    for path in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")} - read):
        fix = "put targets at <org>/<name>.yaml"
        yield Problem(display_path(path), None, "", "is not read from this path", fix)
