"""Endpoints and components: shares of requests, updates that alarms watch, refusals, their end."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from peagle.sandbox import endpoints
from peagle.sandbox.endpoints import SandboxComponent
from peagle.sandbox.engines import Fleet

PARAMETERS: dict[str, Any] = {
    "InferenceComponentName": "tiny",
    "EndpointName": "tiny",
    "VariantName": "AllTraffic",
    "Specification": {"ModelName": "old"},
    "RuntimeConfig": {"CopyCount": 2},
}
CHANGED = {**PARAMETERS, "Specification": {"ModelName": "new"}}
WATCHED = {"AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}]}}


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


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints.Serving, "new_engine", Engine)
    monkeypatch.setattr(endpoints, "replace", lambda spec, count: spec)
    monkeypatch.setattr("peagle.sandbox.endpoints.is_missing_image", lambda *_: False)


def spec(model: str) -> Any:
    return SimpleNamespace(
        variant="AllTraffic", count=2, model=model, image="i", region="us-east-1"
    )


@pytest.mark.parametrize("is_fired", [False, True])
def test_an_update_serves_unless_an_alarm_returns_the_earlier_copies(
    monkeypatch: pytest.MonkeyPatch, is_fired: bool
) -> None:
    endpoint: Any = SimpleNamespace(
        region="us-east-1",
        endpoint_name="tiny",
        arn="arn",
        variants=[{"VariantName": "AllTraffic"}],
        tag_engine=lambda chosen: None,
    )
    component = SandboxComponent("arn", endpoint, PARAMETERS)
    component.begin_serving(spec("old"), PARAMETERS)
    component.join()
    state = "ALARM" if is_fired else "OK"
    alarm = SimpleNamespace(name="errors", state_value=state)
    monkeypatch.setattr(endpoints, "find_alarms", lambda region, names: [alarm])
    component.begin_serving(spec("new"), CHANGED, WATCHED)
    component.join()
    assert component.status == "InService"
    assert ("errors" in (component.failure_reason or "")) == is_fired
    model = "old" if is_fired else "new"
    assert component.response_object["Specification"] == {"ModelName": model}
    fleet: Any = component.current
    assert [engine.spec.model for engine in fleet.instances] == [model, model]


SHARES = {"AllTraffic": 0.75, "Candidate": 0.25}


def test_requests_are_shared_by_the_weights_from_their_change_on() -> None:
    specs: Any = [SimpleNamespace(variant=name, count=1) for name in SHARES]
    fleet = Fleet(specs, cast(Any, Engine))

    def chosen(weights: dict[str, float], count: int) -> Counter[str]:
        return Counter(fleet.choose(weights, None).spec.variant for _ in range(count))

    for _ in range(50):  # a proof, which does not change the shares
        assert fleet.choose(SHARES, "Candidate").spec.variant == "Candidate"
    assert chosen(SHARES, 40) == {"AllTraffic": 30, "Candidate": 10}
    half = dict.fromkeys(SHARES, 1.0)
    assert chosen(half, 20) == {"AllTraffic": 10, "Candidate": 10}
    assert chosen(half | {"Candidate": 0.0}, 3) == {"AllTraffic": 3}
