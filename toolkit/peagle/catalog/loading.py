"""Loads a catalogue from its folders, and checks all files of one.

    <folder>/<org>/<name>.yaml    one target; its path is its id
    <folder>/runtimes.yaml        vLLM versions and images
    <folder>/instances.yaml       instance types
    <folder>/storage.yaml         prices of storage in S3
    <folder>/speed_model.yaml     constants of the performance model
    <folder>/training.yaml        published heads by their training
    <folder>/version_rules.yaml   facts that hold on some vLLM versions only
    <folder>/methods.yaml         published methods of speculation
    <folder>/images.yaml          images in place of those of runtimes.yaml (catalog refresh)
    <folder>/prices.yaml          prices in place of those of instances.yaml (catalog refresh)
    <folder>/evidence/*.json      measured results (see evidence.py)

A user's own folder has the same layout. Its targets are added to the bundled ones or replace those
of the same id, and its tables replace the bundled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from peagle.catalog.documents import (
    BadFile,
    Location,
    Model,
    Problem,
    catalog_error,
    display_path,
    evidence_files,
    folders,
    parse_document,
    problem_at,
    read_document,
    validate,
)
from peagle.catalog.evidence import Speeds, read_run
from peagle.catalog.schema import DRAFTLESS, Catalog, Target
from peagle.catalog.tables import (
    ImageTable,
    InstanceTable,
    MethodTable,
    PriceTable,
    RuntimeTable,
    SpeedModel,
    StorageTable,
    TrainingTable,
    VersionRuleTable,
)
from peagle.errors import nearest
from peagle.s3uri import S3Uri
from peagle_serve.contract import HUB_ID, is_s3_uri

Violation = tuple[Location, str, str]
"""Where, message and fix."""

_TABLES: dict[str, type[BaseModel]] = {
    "runtimes.yaml": RuntimeTable,
    "instances.yaml": InstanceTable,
    "storage.yaml": StorageTable,
    "version_rules.yaml": VersionRuleTable,
    "methods.yaml": MethodTable,
    "speed_model.yaml": SpeedModel,
    "training.yaml": TrainingTable,
    "images.yaml": ImageTable,
    "prices.yaml": PriceTable,
}
_UPDATED_BY = {"runtimes.yaml": "images.yaml", "instances.yaml": "prices.yaml"}
"""Tables written by hand -> the files of a refresh, which need not exist."""


def load_catalog(user_folder: Path | None = None) -> Catalog:
    """The bundled catalogue, with what ``user_folder`` adds to it or replaces in it.

    Raises CatalogError for a wrong table or target and for two targets with the same short name.
    """
    files = target_files(user_folder)
    targets = {target_id: _read(path, Target) for target_id, path in files.items()}
    names = {target_id: target.short_name for target_id, target in targets.items()}
    if problems := _same_short_names(names, files):
        raise catalog_error(problems)
    return Catalog(
        targets=targets,
        runtimes=load_table(RuntimeTable, user_folder),
        instances=load_table(InstanceTable, user_folder),
        origins={target_id: display_path(path) for target_id, path in files.items()},
        speeds=Speeds(user_folder),
        speed_model=load_table(SpeedModel, user_folder),
        version_rules=load_table(VersionRuleTable, user_folder),
        is_extended=user_folder is not None,
    )


def load_table(model: type[Model], user_folder: Path | None = None) -> Model:
    """One table, such as the prices of storage, with what a refresh wrote for it; no target is
    read. Raises CatalogError for a wrong one."""
    name = next(name for name, kind in _TABLES.items() if kind is model)
    table = _read(table_file(name, user_folder), model)
    update = refreshed_file(name, user_folder) if name in _UPDATED_BY else None
    return _read(update, _TABLES[update.name]).added_to(table) if update else table  # type: ignore


def target_files(user_folder: Path | None) -> dict[str, Path]:
    """The file of every target, by id, in the order of the ids."""
    files: dict[str, Path] = {}
    for folder in folders(user_folder):
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
    rules = _RULES.get(model)
    if entry is not None and rules is not None:
        problems = [problem_at(document, *violation) for violation in rules(entry, path.absolute())]
    return entry, problems


def _read(path: Path, model: type[Model]) -> Model:
    entry, problems = validate_file(path, model)
    if entry is None or problems:
        raise catalog_error(problems)
    return entry


def _same_short_names(names: Mapping[str, str], files: Mapping[str, Path]) -> list[Problem]:
    """A problem for each short name that a second target uses. Bundled targets come first: of a
    bundled and an own file with the same short name, the user's own has the problem."""
    (bundled,) = folders(None)
    owners: dict[str, Path] = {}
    problems: list[Problem] = []
    for target_id in sorted(names, key=lambda each: not files[each].is_relative_to(bundled)):
        name, path = names[target_id], files[target_id]
        if (other := owners.setdefault(name, path)) != path:
            message = f"{name} is also the short name in {display_path(other)}"
            file = display_path(path)
            problems.append(Problem(file, None, "short_name", message, "choose another name"))
    return problems


_LAYOUT = "put targets at <org>/<name>.yaml"


def check_catalog(user_folder: Path | None = None) -> tuple[list[Path], list[Problem]]:
    """The files of the catalogue, bundled and own, and all their problems."""
    targets = target_files(user_folder)
    tables = [table_file(name, user_folder) for name in _TABLES if name not in _UPDATED_BY.values()]
    updates = [path for name in _UPDATED_BY if (path := refreshed_file(name, user_folder))]
    checked = [*targets.values(), *tables, *updates, *evidence_files(user_folder)]
    problems = [problem for path in checked for problem in check_catalog_file(path)]
    read = {target_id: validate_file(path, Target)[0] for target_id, path in targets.items()}
    names = {target_id: target.short_name for target_id, target in read.items() if target}
    problems += _same_short_names(names, targets)
    for folder in folders(user_folder):
        in_place = {*folder.glob("*/*.yaml"), *(folder / name for name in _TABLES)}
        for path in sorted({*folder.rglob("*.yaml"), *folder.rglob("*.yml")} - in_place):
            message = "is not read from this path"
            problems.append(Problem(display_path(path), None, "", message, _LAYOUT))
    *_, last = folders(user_folder)
    if not problems and not any(path.is_relative_to(last) for path in checked):
        problems = [Problem(display_path(last), None, "", "holds no catalogue files", _LAYOUT)]
    return checked, problems


def check_catalog_file(path: Path) -> list[Problem]:
    """All problems of the content of one file; its name decides what it must hold."""
    if path.suffix != ".json":
        return validate_file(path, _TABLES.get(path.name, Target))[1]
    try:
        read_run(path)
    except BadFile as bad:
        return [bad.problem]
    return []


def _target_violations(target: Target, path: Path) -> Iterator[Violation]:
    expected, shape = f"{path.parent.name}/{path.stem}", target.architecture
    if target.id != expected:
        fix = f"rename the file to {target.id}.yaml, or write `id: {expected}`"
        yield ("id",), f"expected {expected}, the path of the file, found {target.id}", fix
    layers = sum(group.layers for group in shape.attention)
    # Hybrids have layers without a cache or with two; Gemma 3n shares caches among layers.
    one_each = not shape.recurrent and shape.latent is None and not shape.per_layer_embeddings
    if one_each and shape.feed_forward_layers is None and layers != shape.layers:
        message = f"the groups have {layers} layers in total, the model has {shape.layers}"
        yield ("architecture", "attention"), message, "correct the number of layers"
    for number, group in enumerate(shape.attention):
        if (group.kind == "sliding") != (group.window is not None):
            where = ("architecture", "attention", number)
            yield where, f"kind {group.kind} with window {group.window}", "only sliding has one"
    yield from _weights(("weights",), target.weights, path)
    names = [drafter.name for drafter in target.drafters]
    if target.default_drafter is not None:
        yield from _unknown(("default_drafter",), "drafter", target.default_drafter, names)
    public = [drafter.name for drafter in target.drafters if drafter.public]
    for number, drafter in enumerate(target.drafters):
        here = ("drafters", number)
        if drafter.name in names[:number]:
            yield (*here, "name"), f"duplicate name {drafter.name}", "keep one of them"
        if bool(drafter.weights) != (drafter.public and drafter.method not in DRAFTLESS):
            message = f"the method {drafter.method} with public: {str(drafter.public).lower()} has "
            message += "no weights" if drafter.weights else "weights"
            yield (*here, "weights"), message, "set either `weights` or `public: false`"
        if drafter.k_trained and drafter.k_recommended > drafter.k_trained:
            message = f"{drafter.k_recommended} exceeds k_trained {drafter.k_trained}"
            yield (*here, "k_recommended"), message, f"at most {drafter.k_trained}"
        if drafter.fallback is not None:
            yield from _unknown((*here, "fallback"), "public drafter", drafter.fallback, public)
        if (longer := drafter.long_context) is not None:
            at = (*here, "long_context", "drafter")
            yield from _unknown(at, "public drafter", longer.drafter, public)
        if drafter.weights:
            yield from _weights((*here, "weights"), drafter.weights, path)


def _weights(where: Location, weights: str, path: Path) -> Iterator[Violation]:
    is_path = weights.startswith(("./", "/")) and ".." not in Path(weights).parts
    is_folder = is_path and (path.parent / weights).is_dir()
    is_in_s3 = is_s3_uri(weights) and S3Uri.parse(weights).has_bucket_name
    if not (is_folder or is_in_s3 or HUB_ID.fullmatch(weights)):
        fix = "write an id such as openai/gpt-oss-20b, ./folder next to the file, /folder, or s3://"
        yield where, f"{weights!r} is neither an id nor a folder, nor in S3", fix


def _unknown(where: Location, kind: str, name: str, names: list[str]) -> Iterator[Violation]:
    if name not in names:
        hint = nearest(name, names) or f"known: {', '.join(names)}"
        yield where, f"there is no {kind} {name!r}", hint


_RULES: dict[type[BaseModel], Callable[..., Iterator[Violation]]] = {
    Target: _target_violations,
    RuntimeTable: lambda table, _: _unknown(
        ("default",), "runtime", table.default, [runtime.vllm for runtime in table.runtimes]
    ),
}
"""The rules between the keys of a file, beyond the type of each."""
