"""Faults of the sandbox: which call meets which, how often, and what cannot be added."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from peagle.sandbox.faults import KINDS, Fault, Faults


def faults(*added: Fault) -> Faults:
    found = Faults()
    for fault in added:
        found.add(fault)
    return found


def test_a_fault_of_a_service_is_none_of_another() -> None:
    found = faults(Fault("logs:ListTagsForResource", "throttling"), Fault("AddTags", "throttling"))
    assert found.meet_call("ecr", "ListTagsForResource") is None
    assert found.meet_call("logs", "ListTagsForResource") is not None
    assert found.meet_call("sagemaker", "AddTags") is not None


def test_faults_of_one_operation_happen_in_their_order() -> None:
    found = faults(
        Fault("PutObject", "throttling", times=2), Fault("PutObject", "access-denied", times=1)
    )
    met = [found.meet_call("s3", "PutObject") for _ in range(4)]
    assert [one.kind if one else None for one in met] == [
        "throttling",
        "throttling",
        "access-denied",
        None,
    ]
    assert [fault.seen for fault in found.all()] == [2, 1]


def test_a_call_does_not_use_up_a_fault_of_endpoints() -> None:
    kind = "insufficient-capacity"
    found = faults(Fault("CreateEndpoint", kind, 1, instance_type="ml.g5.xlarge"))
    assert found.meet_call("sagemaker", "CreateEndpoint") is None
    assert found.meet_endpoint("CreateEndpoint", ["ml.g6.xlarge"]) == ""
    assert found.meet_endpoint("UpdateEndpoint", ["ml.g5.xlarge"]) == ""
    assert found.meet_endpoint("CreateEndpoint", ["ml.g6.xlarge", "ml.g5.xlarge"]) == kind
    assert found.meet_endpoint("CreateEndpoint", ["ml.g5.xlarge"]) == ""


def test_an_alarm_fires_for_an_update_only() -> None:
    found = faults(Fault("UpdateEndpoint", "alarm-fires", 1))
    assert found.meet_endpoint("UpdateEndpoint", []) == ""
    assert not found.meet_alarm("UpdateInferenceComponent")
    assert [found.meet_alarm("UpdateEndpoint") for _ in range(2)] == [True, False]


def test_clearing_one_operation_leaves_the_others_and_frees_what_is_held() -> None:
    found = faults(Fault("PutObject", "throttling"), Fault("CreateEndpoint", "stuck-creating"))
    held = threading.Thread(target=found.hold_until_cleared)
    held.start()
    assert found.clear("CreateEndpoint") == 1
    held.join(10)
    assert not held.is_alive()
    assert [fault.operation for fault in found.all()] == ["PutObject"]
    assert found.clear() == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_fault_of_an_update(kind: str) -> None:
    faults(Fault("sagemaker:UpdateEndpoint", kind))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kind": "broken"}, "unknown kind 'broken'"),
        ({"operation": "CreateEndpont"}, "did you mean CreateEndpoint"),
        ({"operation": "s4:PutObject"}, "unknown service 's4'"),
        ({"operation": "s3:CreateEndpoint"}, "unknown operation 's3:CreateEndpoint'"),
        ({"kind": "update-rollback-failed"}, "is a fault of UpdateEndpoint, not of CreateEndpoint"),
        ({"operation": "GetRole", "kind": "stuck-creating"}, "not of GetRole"),
        ({"kind": "alarm-fires"}, "UpdateEndpoint and UpdateInferenceComponent"),
        ({"instance_type": "ml.g5.xlarge"}, "throttling has no instance type"),
        ({"times": 0}, "not 0 times"),
    ],
)
def test_a_fault_that_cannot_happen_is_rejected(given: dict[str, Any], expected: str) -> None:
    fault = Fault(**{"operation": "CreateEndpoint", "kind": "throttling", **given})
    with pytest.raises(ValueError, match=re.escape(expected)):
        faults(fault)
