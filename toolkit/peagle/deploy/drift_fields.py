"""What a comparison of plan and account works with: both sides, and the fields that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from peagle.aws import sagemaker
from peagle.aws.client import Aws
from peagle.aws.sagemaker import Endpoint
from peagle.catalog.tables import InstanceTable
from peagle.deploy.desired import DesiredState
from peagle.planning.plan import Plan


@dataclass(frozen=True)
class FieldDrift:
    """One field that differs: ``field`` is such as ``configuration.instance_type``; ``None`` is a
    value that is not set."""

    field: str
    planned: Any
    found: Any

    def document(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"field": self.field, "planned": self.planned, "found": self.found}


@dataclass(frozen=True)
class Compared:
    """What is compared: the plan with names and role filled in, and what the account has."""

    aws: Aws
    desired: DesiredState
    live: Endpoint
    instances: InstanceTable

    @property
    def plan(self) -> Plan:
        return self.desired.plan

    @cached_property
    def tags(self) -> dict[str, str]:
        """The endpoint's tags."""
        return sagemaker.tags_of(self.aws, self.live.arn)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The endpoint's configuration, as described."""
        return sagemaker.description(self.aws, "EndpointConfig", self.live.endpoint_config)


def model_name(live: Endpoint, config: Mapping[str, Any]) -> str:
    """The model that the endpoint with this configuration serves."""
    if live.hosts_components:
        return live.revision
    return str(config["ProductionVariants"][0].get("ModelName", ""))


def differing(
    area: str, planned: Mapping[str, Any], found: Mapping[str, Any]
) -> Iterator[FieldDrift]:
    for key in dict.fromkeys((*planned, *found)):
        if planned.get(key) != found.get(key):
            yield FieldDrift(f"{area}.{key}", planned.get(key), found.get(key))


def nested(field: str, planned: Any, found: Any) -> Iterator[FieldDrift]:
    """The leaves that differ. What AWS adds to a mapping that the plan has is not a difference."""
    if isinstance(planned, Mapping) and isinstance(found, Mapping):
        for key, value in planned.items():
            yield from nested(f"{field}.{key}", value, found.get(key))
    elif isinstance(planned, list) and isinstance(found, list) and len(planned) == len(found):
        for at, (one, other) in enumerate(zip(planned, found, strict=True)):
            yield from nested(f"{field}[{at}]", one, other)
    elif planned != found and not (planned is None and not found):
        yield FieldDrift(field, planned, found)


def plain(value: Any) -> Any:
    """Dimensions, and actions, in any order are the same; none are as if not set."""
    if not isinstance(value, list):
        return value
    if all(isinstance(one, str) for one in value):
        return sorted(value) or None
    return {one["Name"]: one["Value"] for one in value}
