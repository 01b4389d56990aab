"""The project file: its shape, made from the options that it may contain, and how it is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from peagle.catalog.documents import (
    LARGEST_FILE,
    BadFile,
    Document,
    Location,
    Problem,
    display_path,
    dotted,
    parse_document,
    read_bytes,
    validate,
)
from peagle.errors import Fix, UserError

FILE_NAME = "peagle.yaml"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](-*[A-Za-z0-9])*$", max_length=40)]
"""The name of an endpoint or environment: part of the deployment's name."""

PAIR, BUILD_IMAGE = "pair", "build_image"
DEFAULTS, ENVIRONMENTS, ENDPOINTS, GATES = "defaults", "environments", "endpoints", "gates"
"""The keys of the file."""

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

_PAIR_HELP = "A pair such as gpt-oss-20b or gpt-oss-20b+eagle3; a model's id or folder."
_BUILD_HELP = (
    "Pipelines build an image of your own, and deploy it by its digest (deploy --image-from)."
)
_HELP = {
    DEFAULTS: "Options of all endpoints.",
    ENVIRONMENTS: "Stages such as staging and production: options that replace those of endpoints.",
    ENDPOINTS: "The endpoints of this repository, by name.",
    GATES: "Options of the commands that stop a pipeline, by command.",
}


@dataclass(frozen=True)
class OptionKey:
    """An option as a key: its ``type`` is what a value in the file may be, ``parameter`` its name
    in the commands' code."""

    name: str
    parameter: str
    type: Any
    help: str


class _Part(BaseModel):
    """A mapping of the file. Values are those of one file, so they never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


OWN_KEYS = (
    OptionKey(PAIR, PAIR, str, _PAIR_HELP),
    OptionKey(BUILD_IMAGE, BUILD_IMAGE, bool, _BUILD_HELP),
)
"""Keys that are no options of a command."""


@dataclass(frozen=True)
class FileOptions:
    """The options that a file may contain: ``keys`` for an endpoint, ``gates`` by command."""

    keys: tuple[OptionKey, ...]
    gates: tuple[tuple[str, tuple[OptionKey, ...]], ...]


@lru_cache(maxsize=4)
def file_model(options: FileOptions) -> type[BaseModel]:
    """The model of a file with these options. Every key may be ``null``, which takes back what a
    less specific part of the file says."""
    commands = {name: _model(f"Gates of {name}", keys) for name, keys in options.gates}
    gates = create_model(
        "Gates",
        __base__=_Part,
        **{
            name: _optional(model, f"Options of peagle {name}.") for name, model in commands.items()
        },
    )
    settings = _model("Settings", (*OWN_KEYS, *options.keys))
    stage: Any = _with("Environment", settings, {GATES: gates})
    endpoint: Any = _with("Endpoint", stage, {ENVIRONMENTS: dict[Name, stage | None]})
    parts = {DEFAULTS: settings, ENVIRONMENTS: dict[Name, stage | None], GATES: gates}
    file = _with("Project", _Part, parts)
    endpoints = Field(description=_HELP[ENDPOINTS], min_length=1)
    required: Mapping[str, Any] = {ENDPOINTS: (dict[Name, endpoint], endpoints)}
    return create_model("Project file", __base__=file, **required)


def _model(name: str, keys: Iterable[OptionKey]) -> type[BaseModel]:
    fields: Mapping[str, Any] = {key.name: _optional(key.type, key.help) for key in keys}
    return create_model(name, __base__=_Part, **fields)


def _with(name: str, base: type[BaseModel], parts: Mapping[str, Any]) -> type[BaseModel]:
    fields: Mapping[str, Any] = {key: _optional(part, _HELP[key]) for key, part in parts.items()}
    return create_model(name, __base__=base, **fields)


def _optional(kind: Any, help: str) -> Any:
    return (kind | None, Field(default=None, description=help))


def project_schema(options: FileOptions) -> dict[str, Any]:
    """The JSON schema of the file, for editors."""
    return {"$schema": SCHEMA_DIALECT, "title": "peagle.yaml", **deepcopy(_schema(options))}


@lru_cache(maxsize=4)
def _schema(options: FileOptions) -> dict[str, Any]:
    """pydantic needs a quarter of a second for it."""
    made = file_model(options).model_json_schema()
    _without_titles(made)
    return made


def _without_titles(node: Any) -> None:
    """Remove what pydantic adds and an editor would show instead of the description."""
    if isinstance(node, dict):
        if isinstance(node.get("title"), str):
            del node["title"]
        if "default" in node and node["default"] is None:
            del node["default"]
        for each in node.values():
            _without_titles(each)
    elif isinstance(node, list):
        for each in node:
            _without_titles(each)


class ProjectFileError(UserError, code="project-file"):
    """A project file is wrong; the message names file and key."""


@dataclass(frozen=True)
class Project:
    """A valid project file. ``options`` are those that it may contain."""

    path: Path
    document: Document
    options: FileOptions

    @property
    def data(self) -> dict[str, Any]:
        """The content, which the model has accepted."""
        data = self.document.data
        return data if isinstance(data, dict) else {}

    @property
    def folder(self) -> Path:
        """The folder that paths in the file are relative to."""
        return self.path.parent

    def error(self, location: Location, message: str, fix: str | Fix = "") -> ProjectFileError:
        """An error about the value at ``location``."""
        line, key = self.document.line(location), dotted(location)
        problem = Problem(self.document.file, line, key, message, "")
        return ProjectFileError(problem.text, fix)


def find_project(folder: Path) -> Path | None:
    """``peagle.yaml`` in the folder or the nearest one above; ``None`` without one."""
    start = folder.absolute()
    files = (parent / FILE_NAME for parent in (start, *start.parents))
    return next((file for file in files if file.is_file()), None)


def read_project(path: Path, options: FileOptions) -> Project:
    """The project file. Raises ProjectFileError for a file that is unreadable or wrong."""
    file = display_path(path)
    try:
        text = read_bytes(path, LARGEST_FILE).decode("utf-8")
    except BadFile as error:
        raise _file_error(error.problem) from None
    except UnicodeDecodeError as error:
        raise ProjectFileError(
            f"{file} is not UTF-8 (invalid byte at offset {error.start})", "save it as UTF-8"
        ) from None
    return parse_project(text, path, options)


def parse_project(text: str, path: Path, options: FileOptions) -> Project:
    """The project file with this text. Raises ProjectFileError."""
    try:
        document = parse_document(text, display_path(path))
    except BadFile as error:
        raise _file_error(error.problem) from None
    _, problems = validate(document, file_model(options))
    if problems:
        raise _file_error(problems[0])
    return Project(path, document, options)


def _file_error(problem: Problem) -> ProjectFileError:
    return ProjectFileError(problem.text, problem.fix)
