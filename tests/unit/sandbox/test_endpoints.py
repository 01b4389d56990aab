"""Endpoints and components: shares of requests, updates in batches, refusals, their end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.sandbox import endpoints
from peagle.sandbox.endpoints import (
    NotFoundError,
    RefusedForNowError,
    SandboxComponent,
    SandboxEndpoint,
)
from peagle.sandbox.engines import Fleet
from peagle.sandbox.sagemaker import SageMakerBackend

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
    monkeypatch.setattr("peagle.sandbox.engines.EngineInstance", Engine)
    monkeypatch.setattr(endpoints, "replace", lambda spec, count: spec)
    monkeypatch.setattr("peagle.sandbox.endpoints.is_missing_image", lambda *given: False)
    variants = [{"VariantName": "AllTraffic"}]
    endpoint: Any = SimpleNamespace(
        region="us-east-1",
        endpoint_name="tiny",
        arn="arn",
        variants=variants,
        tag_engine=lambda chosen: None,
    )
    made = SandboxComponent("arn", endpoint, PARAMETERS)
    made.begin_serving("Creating", spec("old"), PARAMETERS)
    made.join()
    assert made.status == "InService"
    return made


def spec(model: str) -> Any:
    return SimpleNamespace(
        variant="AllTraffic", count=2, model=model, image="i", region="us-east-1"
    )


def models(component: SandboxComponent) -> list[str]:
    assert component.current is not None
    return [one.spec.model for one in component.current.instances]  # type: ignore[attr-defined]


def test_batches_replace_the_copies(
    component: SandboxComponent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "alarms_in_alarm", lambda region, names: [])

    component.begin_serving("Updating", spec("new"), CHANGED, WATCHED)
    component.join()

    assert (component.status, component.failure_reason) == ("InService", None)
    assert models(component) == ["new", "new"]
    assert component.response_object["Specification"] == {"ModelName": "new"}


def test_an_alarm_returns_the_earlier_copies(
    component: SandboxComponent, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def in_alarm(region: str, names: Any) -> list[str]:
        fleets = [component.next_fleet() for _ in range(4)]
        seen.extend(one.instances[0].spec.model for one in fleets if one)  # type: ignore[attr-defined]
        return list(names)

    monkeypatch.setattr(endpoints, "alarms_in_alarm", in_alarm)

    component.begin_serving("Updating", spec("new"), CHANGED, WATCHED)
    component.join()

    assert sorted(seen) == ["new", "new", "old", "old"], "a half of the requests after a batch"
    assert component.status == "InService"
    assert "errors" in (component.failure_reason or "")
    assert models(component) == ["old", "old"]
    assert component.response_object["Specification"] == {"ModelName": "old"}


SHARES = {"AllTraffic": 0.75, "Candidate": 0.25}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Two variants with an engine each."""
    monkeypatch.setattr("peagle.sandbox.engines.EngineInstance", Engine)
    specs: Any = [SimpleNamespace(variant=name, count=1) for name in SHARES]
    return Fleet(specs)


def chosen(engines: Fleet, weights: dict[str, float], count: int) -> Counter[str]:
    return Counter(engines.choose(weights, None).spec.variant for _ in range(count))


def test_requests_to_one_variant_do_not_change_the_shares(engines: Fleet) -> None:
    for _ in range(50):  # a proof
        assert engines.choose(SHARES, "Candidate").spec.variant == "Candidate"

    assert chosen(engines, SHARES, 40) == {"AllTraffic": 30, "Candidate": 10}


def test_another_share_holds_from_its_change_on(engines: Fleet) -> None:
    chosen(engines, SHARES, 100)

    half = dict.fromkeys(SHARES, 1.0)
    assert chosen(engines, half, 20) == {"AllTraffic": 10, "Candidate": 10}
    assert chosen(engines, half | {"Candidate": 0.0}, 3) == {"AllTraffic": 3}


REGION = "us-east-1"


@pytest.fixture
def backend() -> SageMakerBackend:
    return SageMakerBackend(REGION, "123456789012")


@pytest.mark.parametrize(
    "look_up",
    [
        lambda backend: backend.delete_model("gone"),
        lambda backend: backend.delete_endpoint_config("gone"),
        lambda backend: backend.begin_deleting("gone"),
        lambda backend: backend.begin_deleting_component("gone"),
    ],
)
def test_what_does_not_exist_is_not_found(
    backend: SageMakerBackend, look_up: Callable[[SageMakerBackend], object]
) -> None:
    with pytest.raises(NotFoundError, match="Could not find") as refused:
        look_up(backend)

    assert refused.value.code == "ValidationException"


class Busy(SandboxEndpoint):
    def __init__(self) -> None:
        self.arn, self.status, self.components = "arn", "Updating", {}


class WithCopies(Busy):
    def __init__(self) -> None:
        super().__init__()
        self.status, self.components = "InService", {"tiny": object()}  # type: ignore[dict-item]


@pytest.mark.parametrize("endpoint", [Busy(), WithCopies()])
def test_a_busy_endpoint_and_one_with_copies_are_refused_for_now(
    backend: SageMakerBackend, endpoint: SandboxEndpoint
) -> None:
    backend.endpoints["tiny"] = endpoint

    with pytest.raises(RefusedForNowError) as refused:
        backend.begin_deleting("tiny")

    assert refused.value.code == "ValidationException"
