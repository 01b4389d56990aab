"""The stages of a pipeline of CodePipeline, as its CloudFormation template wires them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml


@dataclass(frozen=True)
class Build:
    """A project of CodeBuild: its build specification and the variables of its environment."""

    specification: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Action:
    """An action of a stage: a build, or an approval that shows ``shown``. Its exported variables go
    to ``namespace``; ``inputs`` are artifacts, the source first."""

    name: str
    build: Build | None
    shown: str
    namespace: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """One stage with its actions in their order."""

    name: str
    actions: tuple[Action, ...]


class _Loader(yaml.SafeLoader):
    """Reads a function of CloudFormation as a mapping, such as ``{"Ref": name}``."""


def _function(loader: yaml.SafeLoader, tag: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {tag: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {tag: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {tag: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)


class Template:
    """A template, with the defaults of its parameters; empty ones are not set."""

    def __init__(self, content: bytes) -> None:
        self._document = _Loader(content).get_single_data()
        parameters = self._document["Parameters"].items()
        self._parameters = {name: str(one.get("Default", "")) for name, one in parameters}

    def stages(self) -> tuple[Stage, ...]:
        """The stages after the source."""
        stages = self._properties("Pipeline")["Stages"][1:]
        return tuple(Stage(one["Name"], tuple(map(self._action, _ordered(one)))) for one in stages)

    def build(self, project: str) -> Build:
        """The build of a resource, such as ``NightlyProject``."""
        found = self._properties(project)
        listed = map(self._value, found["Environment"]["EnvironmentVariables"])
        variables = {one["Name"]: self._value(one["Value"]) for one in listed if one}
        return Build(found["Source"]["BuildSpec"], variables)

    def _properties(self, resource: str) -> dict[str, Any]:
        properties: dict[str, Any] = self._document["Resources"][resource]["Properties"]
        return properties

    def _action(self, content: Mapping[str, Any]) -> Action:
        settings = content["Configuration"]
        project = settings.get("ProjectName")
        return Action(
            content["Name"],
            self.build(project["Ref"]) if project else None,
            settings.get("CustomData", ""),
            content.get("Namespace", ""),
            tuple(one["Name"] for one in content.get("InputArtifacts", ())),
            tuple(one["Name"] for one in content.get("OutputArtifacts", ())),
        )

    def _value(self, value: Any) -> Any:
        """The value of a parameter, or of a condition that a parameter is set."""
        if isinstance(value, dict) and "Ref" in value:
            return self._parameters.get(value["Ref"])
        if isinstance(value, dict) and "If" in value:
            condition, then, otherwise = value["If"]
            (compared,) = self._document["Conditions"][condition]["Not"]
            parameter, empty = compared["Equals"]
            return self._value(otherwise if self._value(parameter) == empty else then)
        return value


def _ordered(stage: Mapping[str, Any]) -> list[Any]:
    return sorted(stage["Actions"], key=lambda one: one.get("RunOrder", 1))
