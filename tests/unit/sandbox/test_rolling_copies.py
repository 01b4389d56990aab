"""Copies that the sandbox replaces in batches, which an alarm returns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from peagle.sandbox import alarms, fleet, rollout
from peagle.sandbox.components import SandboxComponent

PARAMETERS: dict[str, Any] = {
    "InferenceComponentName": "tiny",
    "EndpointName": "tiny",
    "VariantName": "AllTraffic",
    "Specification": {"ModelName": "old"},
    "RuntimeConfig": {"CopyCount": 2},
}
CHANGED = {**PARAMETERS, "Specification": {"ModelName": "new"}}
WATCHED = {
    "RollingUpdatePolicy": {
        "MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 1},
        "WaitIntervalInSeconds": 0,
    },
    "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]},
}


class Engine:
    """An engine that starts at once."""

    process = None
    in_progress = 0

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def start(self, on_chosen: Any) -> None: ...
    def drain(self) -> None: ...
    def end(self) -> None: ...
    def give_up(self) -> None: ...


@pytest.fixture
def component(monkeypatch: pytest.MonkeyPatch) -> SandboxComponent:
    """Two copies that serve."""
    monkeypatch.setattr(fleet, "EngineInstance", Engine)
    monkeypatch.setattr("peagle.sandbox.components.replace", lambda spec, count: spec)
    monkeypatch.setattr("peagle.sandbox.components.is_missing_image", lambda *given: False)
    made = SandboxComponent("arn", "arn", PARAMETERS, lambda chosen: None)
    made.begin_serving("Creating", spec("old"), True, PARAMETERS)
    made.join()
    assert made.status == "InService"
    return made


def spec(model: str) -> Any:
    return SimpleNamespace(
        variant="AllTraffic", count=2, model=model, image="i", region="us-east-1"
    )


def models(component: SandboxComponent) -> list[str]:
    assert component.fleet is not None
    return [one.spec.model for one in component.fleet.instances]  # type: ignore[attr-defined]


def test_batches_replace_the_copies(
    component: SandboxComponent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarms, "in_alarm", lambda region, names: [])

    component.begin_serving("Updating", spec("new"), True, CHANGED, WATCHED)
    component.join()

    assert (component.status, component.failure_reason) == ("InService", None)
    assert models(component) == ["new", "new"]
    assert component.response_object["Specification"] == {"ModelName": "new"}


def test_an_alarm_returns_the_earlier_copies(
    component: SandboxComponent, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def in_alarm(region: str, names: Any) -> list[str]:
        chosen = [component.choose() for _ in range(4)]
        seen.extend(one.spec.model for one in chosen if one)  # type: ignore[attr-defined]
        return list(names)

    monkeypatch.setattr(alarms, "in_alarm", in_alarm)

    component.begin_serving("Updating", spec("new"), True, CHANGED, WATCHED)
    component.join()

    assert sorted(seen) == ["new", "new", "old", "old"], "a half of the requests after a batch"
    assert component.status == "InService"
    assert "errors" in (component.failure_reason or "")
    assert models(component) == ["old", "old"]
    assert component.response_object["Specification"] == {"ModelName": "old"}


def test_a_batch_has_limits() -> None:
    half = {"RollingUpdatePolicy": {"MaximumBatchSize": {"Type": "COPY_COUNT", "Value": 2}}}

    assert rollout.problem(half, "us-east-1", 4, "copy count") == ""
    assert "copy count, which is 3" in rollout.problem(half, "us-east-1", 3, "copy count")
