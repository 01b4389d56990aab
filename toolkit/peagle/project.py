"""The project file ``peagle.yaml``: its shape, what it says about an endpoint, and the files of a
pipeline that deploys its endpoints.

Its keys are the names of the command line's options, which the caller passes in.
"""

from __future__ import annotations

import json
import shlex
import subprocess  # nosec B404 # a fixed command
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, StringConstraints, create_model

from peagle import __version__
from peagle.catalog.documents import (
    LARGEST_FILE,
    BadFile,
    Document,
    Location,
    display_path,
    parse_document,
    problem_at,
    read_bytes,
    validate,
)
from peagle.data import checkout_folder, data_folder
from peagle.errors import Fix, UserError, nearest
from peagle.frozen import Frozen
from peagle.planning.company import prefixed
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.text import sanitize

FILE_NAME = "peagle.yaml"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](-*[A-Za-z0-9])*$", max_length=40)]
"""The name of an endpoint or environment: part of the deployment's name."""

DEFAULTS, ENVIRONMENTS, ENDPOINTS, GATES = "defaults", "environments", "endpoints", "gates"
"""The keys of the file."""

_HELP = {
    DEFAULTS: "Options of all endpoints.",
    ENVIRONMENTS: "Stages such as staging and production: options that replace those of endpoints.",
    ENDPOINTS: "The endpoints of this repository, by name.",
    GATES: "Options of the commands that stop a pipeline, by command.",
}


@dataclass(frozen=True)
class OptionKey:
    """An option as a key; ``type`` is what the file may have, ``parameter`` the name in code."""

    name: str
    parameter: str
    type: Any
    help: str


OWN_KEYS = (
    OptionKey(
        "pair",
        "pair",
        str,
        "A pair such as gpt-oss-20b or gpt-oss-20b+eagle3; a model's id or folder.",
    ),
    OptionKey(
        "build_image",
        "build_image",
        bool,
        "Pipelines build an image of your own, and deploy it by its digest (deploy --image-from).",
    ),
)
"""Keys that are no options of a command."""


@dataclass(frozen=True)
class FileOptions:
    """The options that a file may contain: ``keys`` for an endpoint, ``gates`` by command."""

    keys: tuple[OptionKey, ...]
    gates: tuple[tuple[str, tuple[OptionKey, ...]], ...]


@lru_cache(maxsize=4)
def file_model(options: FileOptions) -> type[BaseModel]:
    """The model of a file. ``null`` takes back what a less specific part of the file says."""

    def model(name: str, base: type[BaseModel], fields: Mapping[str, tuple[Any, str]]) -> Any:
        optional: Mapping[str, Any] = {
            key: (kind | None, Field(default=None, description=text))
            for key, (kind, text) in fields.items()
        }
        return create_model(name, __base__=base, **optional)

    def parts(**kinds: Any) -> dict[str, tuple[Any, str]]:
        return {key: (kind, _HELP[key]) for key, kind in kinds.items()}

    def keys_model(name: str, keys: Iterable[OptionKey]) -> Any:
        return model(
            name, Frozen, {key.name: (key.type, " ".join(key.help.split())) for key in keys}
        )

    commands = {
        name: (keys_model(f"Gates of {name}", keys), f"Options of peagle {name}.")
        for name, keys in options.gates
    }
    gates = model("Gates", Frozen, commands)
    settings = keys_model("Settings", (*OWN_KEYS, *options.keys))
    stage = model("Environment", settings, parts(gates=gates))
    stages: Any = dict[Name, stage | None]  # type: ignore[valid-type]
    endpoint = model("Endpoint", stage, parts(environments=stages))
    file = model("Project", Frozen, parts(defaults=settings, environments=stages, gates=gates))
    endpoints = Field(description=_HELP[ENDPOINTS], min_length=1)
    required: Mapping[str, Any] = {ENDPOINTS: (dict[Name, endpoint], endpoints)}  # type: ignore[valid-type]
    return create_model("Project file", __base__=file, **required)


def project_schema(options: FileOptions) -> dict[str, Any]:
    """The JSON schema of the file, for editors."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": dialect, **file_model(options).model_json_schema(), "title": FILE_NAME}


class ProjectFileError(UserError, code="project-file"):
    """A project file is wrong; the message names file and key."""


@dataclass(frozen=True)
class Project:
    """A valid project file. ``options`` are those that it may contain."""

    path: Path
    document: Document
    options: FileOptions

    @property
    def data(self) -> Mapping[str, Any]:
        """The content, which the model has accepted."""
        data: Any = self.document.data
        return data if isinstance(data, dict) else {}

    def error(self, location: Location, message: str, fix: str | Fix = "") -> ProjectFileError:
        """An error about the value at ``location``."""
        return ProjectFileError(problem_at(self.document, location, message, "").text, fix)


def find_project(folder: Path) -> Path | None:
    """``peagle.yaml`` in the folder or the nearest one above; ``None`` without one."""
    start = folder.absolute()
    files = (parent / FILE_NAME for parent in (start, *start.parents))
    return next((file for file in files if file.is_file()), None)


def read_project(path: Path, options: FileOptions) -> Project:
    """The project file. Raises ProjectFileError for a file that is unreadable or wrong."""
    try:
        text = read_bytes(path, LARGEST_FILE).decode("utf-8")
    except BadFile as error:
        raise ProjectFileError(error.problem.text, error.problem.fix) from None
    except UnicodeDecodeError:
        raise ProjectFileError(f"{display_path(path)} is not UTF-8", "save it as UTF-8") from None
    return parse_project(text, path, options)


def parse_project(text: str, path: Path, options: FileOptions) -> Project:
    """The project file with this text. Raises ProjectFileError."""
    try:
        document = parse_document(text, display_path(path))
        _, problems = validate(document, file_model(options))
    except BadFile as error:
        problems = [error.problem]
    for problem in problems:
        raise ProjectFileError(problem.text, problem.fix)
    return Project(path, document, options)


@dataclass(frozen=True)
class ProjectValue:
    """A value and its place in the file; ``parts`` are the places of a mapping's values."""

    value: Any
    location: Location
    parts: Mapping[str, Location]


@dataclass(frozen=True)
class EndpointChoice:
    """One endpoint in one environment: its options by key, and the gates' by command."""

    project: Project
    endpoint: str
    environment: str | None
    values: Mapping[str, ProjectValue]
    gates: Mapping[str, Mapping[str, ProjectValue]]

    @property
    def pair(self) -> str:
        """The pair. Raises ProjectFileError for an endpoint without one."""
        if "pair" not in self.values:
            where = (ENDPOINTS, self.endpoint)
            raise self.project.error(where, "missing key pair", "add `pair: gpt-oss-20b`")
        return str(self.values["pair"].value)

    @property
    def builds_image(self) -> bool:
        """Whether a pipeline builds its image."""
        return "build_image" in self.values and bool(self.values["build_image"].value)

    def deployment_name(self, prefix: str) -> str:
        """The name of the deployment: the prefix or ``peagle-``, the file's ``name``, else the
        endpoint's, and the environment, unless that has a ``name`` of its own."""
        setting = self.values.get("name")
        if setting is None:
            parts = (self.endpoint, self.environment)
            return f"{prefix or DEFAULT_PREFIX}{'-'.join(filter(None, parts))}"
        if setting.location[0] != ENDPOINTS and len(list_project_endpoints(self.project)) > 1:
            message = "several endpoints would have this name"
            fix = f"give each endpoint its own, below {ENDPOINTS}, or leave it out"
            raise self.project.error(setting.location, message, fix)
        is_specific = self.environment is None or ENVIRONMENTS in setting.location
        name = str(setting.value)
        return prefixed(name if is_specific else f"{name}-{self.environment}", prefix)


def list_project_endpoints(project: Project) -> list[str]:
    """The endpoints, in the order of the file."""
    return list(project.data[ENDPOINTS])


def list_environments(project: Project, endpoint: str | None = None) -> list[str]:
    """The environments of the endpoint, or of all endpoints, in the order of the file."""
    endpoints = project.data[ENDPOINTS]
    parts = endpoints.values() if endpoint is None else (endpoints[endpoint],)
    names = list(project.data.get(ENVIRONMENTS) or {})
    names += [name for part in parts for name in (part or {}).get(ENVIRONMENTS) or {}]
    return list(dict.fromkeys(names))


def choose_endpoint(
    project: Project, endpoint: str | None, environment: str | None
) -> EndpointChoice:
    """The endpoint of the file (the only one, if none is given) in that environment, which is never
    guessed: it may be production.

    More specific parts replace others: the endpoint's environment, the environment, the endpoint,
    the defaults. Mappings are merged by key. Raises ProjectFileError for an unknown name.
    """
    names, file = list_project_endpoints(project), project.document.file
    if endpoint is None and len(names) > 1:
        fix = f"name one of {', '.join(names)}"
        raise ProjectFileError(f"{file} has {len(names)} endpoints", fix)
    name = _require_known(file, "endpoint", endpoint or names[0], names)
    stages = list_environments(project, name)
    if environment is not None:
        _require_known(file, "environment", environment, stages)
    elif stages:
        fix = f"name one with --environment: {', '.join(stages)}"
        raise ProjectFileError(f"{file} has environments", fix)
    layers: list[Location] = [(DEFAULTS,), (ENDPOINTS, name)]
    if environment is not None:
        layers += [(ENVIRONMENTS, environment), (ENDPOINTS, name, ENVIRONMENTS, environment)]
    of_gates = [(GATES,), *((*layer, GATES) for layer in layers[1:])]
    gates = {
        command: _merged(project, [(*layer, command) for layer in of_gates], keys)
        for command, keys in project.options.gates
    }
    values = _merged(project, layers, (*OWN_KEYS, *project.options.keys))
    return EndpointChoice(project, name, environment, values, gates)


def _require_known(file: str, what: str, name: str, names: Sequence[str]) -> str:
    if name in names:
        return name
    fix = nearest(name, names) or f"{what}s: {', '.join(names) or 'none'}"
    raise ProjectFileError(f"{file} has no {what} {sanitize(name, 60)!r}", fix)


def _merged(
    project: Project, layers: Iterable[Location], keys: Iterable[OptionKey]
) -> dict[str, ProjectValue]:
    """What the parts at ``layers`` say about the keys, the most specific one last."""
    merged: dict[str, ProjectValue] = {}
    allowed = {key.name for key in keys}
    for layer in layers:
        part: Any = project.data
        for step in layer:
            part = (part or {}).get(step)
        for key in allowed & (part or {}).keys():
            value, location = part[key], (*layer, key)
            parts: dict[str, Location] = {}
            if isinstance(value, dict):
                parts = {name: (*location, name) for name in value}
                if key in merged and isinstance(merged[key].value, dict):
                    value = {**merged[key].value, **value}
                    parts = {**merged[key].parts, **parts}
                value = {name: entry for name, entry in value.items() if entry is not None}
            merged[key] = ProjectValue(value, location, parts)
    return {key: setting for key, setting in merged.items() if setting.value not in (None, {})}


PipelineKind = Literal["github", "codepipeline"]
KINDS: tuple[str, ...] = get_args(PipelineKind)

SCHEMA = "peagle.schema.json"

_FOLDERS: dict[str, str] = {"github": ".github/workflows", "codepipeline": "."}
_POLICIES = (
    "execution-role-trust.json", "execution-role-policy.json", "image-policy.json",
    "read-policy.json", "deploy-policy.json", "limit-policy.json", "scaling-policy.json",
)  # fmt: skip
"""Of the role that SageMaker assumes, and of those that build images, plan, and deploy: the starter
project has a ``ttl``, and any endpoint may scale."""

_TRUST: dict[str, tuple[str, ...]] = {
    "github": ("github-oidc-trust.json", "github-oidc-plan-trust.json"),
    "codepipeline": (),
}


def pipeline_files(
    kind: PipelineKind, endpoints: Sequence[str], toolkit: str, values: Mapping[str, str]
) -> dict[str, bytes]:
    """The files by path: workflows or build specifications, and the policies of the roles.

    ``toolkit`` are the arguments of its ``pip install``, as in a shell. ``values`` replace
    ``${account}``, ``${partition}`` and ``${repository}`` in policies.
    """
    files: dict[str, bytes] = {}
    for file in sorted((data_folder("infra/pipelines") / kind).glob("*.y*ml")):
        text = file.read_text("utf-8").replace("TOOLKIT", toolkit)
        text = text.replace("endpoint: [chat]", f"endpoint: [{', '.join(endpoints)}]")
        text = text.replace("Default: chat", f"Default: {endpoints[0]}")
        files[str(Path(_FOLDERS[kind]) / file.name)] = text.encode()
    for name in (*_TRUST[kind], *_POLICIES):
        text = (data_folder("infra/iam") / name).read_text("utf-8")
        for key, value in values.items():
            text = text.replace(f"${{{key}}}", value)
        files[f"iam/{name}"] = text.encode()
    return files


def schema_bytes(schema: Mapping[str, Any]) -> bytes:
    """The JSON schema as a file."""
    return f"{json.dumps(schema, indent=2)}\n".encode()


def toolkit_source(source: str | None) -> tuple[str, dict[str, bytes]]:
    """The arguments of ``pip install`` in a shell, and the files of the repository that they need:
    for ``source``, or without one for the wheel of this checkout. No public index has the toolkit:
    a name that pip looks up there could be anyone's. Raises UserError."""
    if source is None:
        return _build_wheel()
    url = urlsplit(source)
    is_archive = url.path.endswith((".whl", ".tar.gz"))
    if "@" in url.netloc or not (url.scheme or is_archive):
        raise _source_error("--toolkit is a mere name, or has a user or password")
    if is_archive:
        return shlex.quote(source), {}
    return shlex.join(("--index-url", source, f"peagle-toolkit=={__version__}")), {}


def _build_wheel() -> tuple[str, dict[str, bytes]]:
    checkout = checkout_folder()
    if checkout is None:
        raise _source_error("pipelines need to know where to install the toolkit from")
    with tempfile.TemporaryDirectory(prefix="peagle-wheel-") as folder:
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder]
        built = subprocess.run(  # nosec B603 # a fixed command
            [*pip, str(checkout)], capture_output=True, text=True, timeout=600, check=False
        )
        wheels = sorted(Path(folder).glob("*.whl"))
        if built.returncode != 0 or not wheels:
            reason = sanitize(built.stderr.strip().rpartition("\n")[2] or "no output", 200)
            raise _source_error(f"the wheel of {checkout} was not built: {reason}")
        path = f"wheels/{wheels[0].name}"
        return f"./{path}", {path: wheels[0].read_bytes()}


def _source_error(message: str) -> UserError:
    fix = (
        "give --toolkit a wheel in the repository, https://HOST/FILE.whl#sha256=HASH, or the "
        "https:// address of an index that has it and its dependencies"
    )
    return UserError(message, fix, code="toolkit-source")
