"""Inference components of the fake account: one call later, what was asked for serves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any


class FakeComponents:
    """The components by name, and how many ``updates`` succeeded. ``rollouts`` are the
    DeploymentConfigs of all. ``scripts`` are the
    states that the next changes go through, with a reason for the last one; ``error`` makes the
    errors of the account."""

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self.by_name: dict[str, dict[str, Any]] = {}
        self.updates = 0
        self.rollouts: list[dict[str, Any] | None] = []
        self.scripts: list[list[tuple[str, str | None]]] = []
        self._error = error

    def find(self, name: str) -> dict[str, Any]:
        """The component. Raises the account's error."""
        if name not in self.by_name:
            raise self._error(f'Could not find inference component "{name}".')
        return self.by_name[name]

    def create(self, now: float, parameters: dict[str, Any]) -> None:
        """CreateInferenceComponent, on an endpoint that is checked before."""
        name = parameters["InferenceComponentName"]
        if name in self.by_name:
            raise self._error(f'Cannot create already existing inference component "{name}".')
        self.by_name[name] = {"now": parameters, "next": None, "changed": now, "states": []}
        self._begin(name, now, "Creating", parameters)

    def update(self, now: float, parameters: dict[str, Any]) -> None:
        """UpdateInferenceComponent."""
        name = parameters["InferenceComponentName"]
        component = self._idle(name)
        self._begin(name, now, "Updating", {**component["now"], **parameters})

    def scale(self, now: float, name: str, runtime: dict[str, Any]) -> None:
        """UpdateInferenceComponentRuntimeConfig."""
        component = self._idle(name)
        self._begin(name, now, "Updating", {**component["now"], "RuntimeConfig": runtime})

    def delete(self, now: float, name: str) -> None:
        """DeleteInferenceComponent."""
        self._idle(name)["states"] = [("Deleting", None)]

    def describe(self, name: str) -> dict[str, Any]:
        """DescribeInferenceComponent, after which a change goes one state further."""
        component = self.find(name)
        status, reason = component["states"][0]
        if status == "InService" and component["next"]:
            if reason is None:
                self.updates += component["now"] is not component["next"]
                component["now"] = component["next"]
            component["next"] = None
        if len(component["states"]) > 1:
            component["states"].pop(0)
        elif status == "Deleting":
            del self.by_name[name]
        copies = component["now"]["RuntimeConfig"]["CopyCount"]
        return {
            "InferenceComponentName": name,
            "InferenceComponentStatus": status,
            "Specification": component["now"]["Specification"],
            "RuntimeConfig": {"DesiredCopyCount": copies, "CurrentCopyCount": copies},
            "LastModifiedTime": datetime.fromtimestamp(component["changed"], UTC),
            **({"FailureReason": reason} if reason else {}),
        }

    def copies_on(self, endpoint: str) -> int:
        """How many copies run on the endpoint."""
        component = self.by_name.get(endpoint)
        return int(component["now"]["RuntimeConfig"]["CopyCount"]) if component else 0

    def _idle(self, name: str) -> dict[str, Any]:
        component = self.find(name)
        if component["states"][0][0] not in ("InService", "Failed"):
            raise self._error(f'Cannot update in-progress inference component "{name}".')
        return component

    def _begin(self, name: str, now: float, busy: str, desired: dict[str, Any]) -> None:
        states = self.scripts.pop(0) if self.scripts else [(busy, None), ("InService", None)]
        self.by_name[name] |= {"next": desired, "changed": now, "states": [*states]}
