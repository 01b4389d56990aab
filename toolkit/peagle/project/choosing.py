"""What a project file says about one endpoint in one environment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from peagle.catalog.documents import Location
from peagle.errors import nearest
from peagle.planning.company import prefixed
from peagle.planning.runtime import DEFAULT_PREFIX
from peagle.project.reading import (
    BUILD_IMAGE,
    DEFAULTS,
    ENDPOINTS,
    ENVIRONMENTS,
    GATES,
    OWN_KEYS,
    PAIR,
    OptionKey,
    Project,
    ProjectFileError,
)
from peagle.text import sanitize


@dataclass(frozen=True)
class ProjectValue:
    """A value and its place in the file; ``parts`` are the places of a mapping's values, which may
    come from several parts of the file."""

    value: Any
    location: Location
    parts: Mapping[str, Location]


@dataclass(frozen=True)
class EndpointChoice:
    """One endpoint in one environment: its pair, its options by key, and the gates' by command."""

    project: Project
    endpoint: str
    environment: str | None
    values: Mapping[str, ProjectValue]
    gates: Mapping[str, Mapping[str, ProjectValue]]

    @property
    def pair(self) -> ProjectValue:
        """The pair. Raises ProjectFileError for an endpoint without one."""
        pair = self.values.get(PAIR)
        if pair is None:
            where = (ENDPOINTS, self.endpoint)
            raise self.project.error(where, "missing key pair", "add `pair: gpt-oss-20b`")
        return pair

    @property
    def builds_image(self) -> bool:
        """Whether a pipeline builds its image. Raises ProjectFileError for an endpoint that also
        has ``image``."""
        setting = self.values.get(BUILD_IMAGE)
        if setting is None or not setting.value:
            return False
        if "image" in self.values:
            fix = "leave out image: the pipeline builds it"
            message = "build_image and image are mutually exclusive"
            raise self.project.error(setting.location, message, fix)
        return True

    def deployment_name(self, prefix: str) -> str:
        """The name of the deployment, with the prefix or ``peagle-``: the file's ``name``, else the
        endpoint's; with the environment, unless that has a ``name`` of its own.

        Raises ProjectFileError for a ``name`` that several endpoints would share.
        """
        setting = self.values.get("name")
        if setting is None:
            parts = (self.endpoint, self.environment)
            return f"{prefix or DEFAULT_PREFIX}{'-'.join(filter(None, parts))}"
        if setting.location[0] != ENDPOINTS and len(endpoints_of(self.project)) > 1:
            fix = f"give each endpoint its own, below {ENDPOINTS}, or leave it out"
            raise self.project.error(
                setting.location, "several endpoints would have this name", fix
            )
        is_specific = self.environment is None or ENVIRONMENTS in setting.location
        name = str(setting.value)
        return prefixed(name if is_specific else f"{name}-{self.environment}", prefix)


def choose_endpoint(
    project: Project, endpoint: str | None, environment: str | None
) -> EndpointChoice:
    """The endpoint of the file (the only one, if none is given) in that environment.

    More specific parts replace others: the endpoint's environment, the environment, the endpoint,
    the defaults. Mappings such as tags are merged by key, and ``null`` takes a value back. Raises
    ProjectFileError for an unknown name, and for one that is needed.
    """
    name = _chosen_endpoint(project, endpoint)
    stage = _chosen_environment(project, project.data[ENDPOINTS][name] or {}, environment)
    layers: list[Location] = [(DEFAULTS,), (ENDPOINTS, name)]
    if stage is not None:
        layers += [(ENVIRONMENTS, stage), (ENDPOINTS, name, ENVIRONMENTS, stage)]
    gates = [(GATES,), *((*layer, GATES) for layer in layers[1:])]
    return EndpointChoice(
        project,
        name,
        stage,
        _merged(project, layers, (*OWN_KEYS, *project.options.keys)),
        {
            command: _merged(project, [(*layer, command) for layer in gates], keys)
            for command, keys in project.options.gates
        },
    )


def endpoints_of(project: Project) -> list[str]:
    """The endpoints, in the order of the file."""
    return list(project.data[ENDPOINTS])


def environments_of(project: Project, endpoint: str | None = None) -> list[str]:
    """The environments of the endpoint, or of all endpoints, in the order of the file."""
    endpoints = project.data[ENDPOINTS]
    parts = endpoints.values() if endpoint is None else (endpoints[endpoint],)
    return list(
        dict.fromkeys(name for part in parts for name in _environments(project, part or {}))
    )


def _environments(project: Project, endpoint: Mapping[str, Any]) -> list[str]:
    shared = project.data.get(ENVIRONMENTS) or {}
    return list(dict.fromkeys((*shared, *(endpoint.get(ENVIRONMENTS) or {}))))


def _chosen_endpoint(project: Project, name: str | None) -> str:
    """The endpoint of that name, or the only one."""
    names, file = endpoints_of(project), project.document.file
    if name is None and len(names) == 1:
        return names[0]
    if name is None:
        fix = f"name one of {', '.join(names)}"
        raise ProjectFileError(f"{file} has {len(names)} endpoints", fix)
    if name not in names:
        raise _unknown(file, "endpoint", name, names)
    return name


def _chosen_environment(
    project: Project, endpoint: Mapping[str, Any], name: str | None
) -> str | None:
    """The environment of that name. It is not guessed, not even the only one: it may be
    production."""
    names, file = _environments(project, endpoint), project.document.file
    if name is None and names:
        fix = f"name one with --environment: {', '.join(names)}"
        raise ProjectFileError(f"{file} has environments", fix)
    if name is not None and name not in names:
        raise _unknown(file, "environment", name, names)
    return name


def _unknown(file: str, what: str, name: str, names: list[str]) -> ProjectFileError:
    fix = nearest(name, names) or f"{what}s: {', '.join(names) or 'none'}"
    return ProjectFileError(f"{file} has no {what} {sanitize(name, 60)!r}", fix)


def _merged(
    project: Project, layers: Iterable[Location], keys: Iterable[OptionKey]
) -> dict[str, ProjectValue]:
    merged: dict[str, ProjectValue] = {}
    allowed = {key.name for key in keys}
    for layer in layers:
        for key, value in _items(project, layer):
            if key in allowed:
                merged[key] = _over(merged.get(key), value, (*layer, key))
    return {key: setting for key, setting in merged.items() if setting.value not in (None, {})}


def _items(project: Project, layer: Location) -> Iterator[tuple[str, Any]]:
    at: Any = project.data
    for step in layer:
        at = (at or {}).get(step)
    yield from (at or {}).items()


def _over(below: ProjectValue | None, value: Any, location: Location) -> ProjectValue:
    """``value`` in place of what less specific parts say; a mapping is merged with theirs."""
    if not isinstance(value, dict):
        return ProjectValue(value, location, {})
    old = below if below and isinstance(below.value, dict) else ProjectValue({}, location, {})
    parts = {**old.parts, **{key: (*location, key) for key in value}}
    merged = {key: entry for key, entry in {**old.value, **value}.items() if entry is not None}
    return ProjectValue(merged, location, {key: parts[key] for key in merged})
