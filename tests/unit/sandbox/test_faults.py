"""Faults of the sandbox: which call meets which, how often, and what cannot be added."""

import threading
from typing import Any

import pytest

from peagle.sandbox.faults import ALARM, AT_START, CALL, KINDS, Fault, Faults


def faults(*added: Fault) -> Faults:
    faults = Faults()
    for fault in added:
        faults.add(fault)
    return faults


def test_faults_are_met_by_their_service_in_their_order() -> None:
    added = faults(
        Fault("PutObject", "throttling", times=2),
        Fault("s3:PutObject", "access-denied", times=1),
        Fault("logs:ListTagsForResource", "throttling"),
    )
    met = [added.meet("s3", "PutObject", CALL) for _ in range(4)]
    kinds = ["throttling", "throttling", "access-denied", None]
    assert [fault.kind if fault else None for fault in met] == kinds
    assert added.meet("ecr", "ListTagsForResource", CALL) is None
    assert [fault.seen for fault in added.all()] == [2, 1, 0]


def test_faults_of_endpoints_are_met_by_what_starts_only() -> None:
    def met(operation: str, *types: str, kinds: Any = AT_START) -> str | None:
        fault = added.meet("sagemaker", operation, kinds, types)
        return fault.kind if fault else None

    kind = "insufficient-capacity"
    added = faults(Fault("CreateEndpoint", kind, 1, instance_type="ml.g5.xlarge"))
    assert met("CreateEndpoint", "ml.g5.xlarge", kinds=CALL) is None
    assert met("CreateEndpoint", "ml.g6.xlarge") is None
    assert met("UpdateEndpoint", "ml.g5.xlarge") is None
    assert met("CreateEndpoint", "ml.g6.xlarge", "ml.g5.xlarge") == kind
    assert met("CreateEndpoint", "ml.g5.xlarge") is None
    added = faults(Fault("UpdateEndpoint", ALARM, 1))
    assert met("UpdateEndpoint") is None
    assert met("UpdateInferenceComponent", kinds=[ALARM]) is None
    assert [met("UpdateEndpoint", kinds=[ALARM]) for _ in range(2)] == [ALARM, None]


def test_clearing_one_operation_leaves_the_others_and_frees_what_is_held() -> None:
    added = faults(Fault("PutObject", "throttling"), Fault("CreateEndpoint", "stuck-creating"))
    held = threading.Thread(target=added.hold_until_cleared)
    held.start()
    assert added.clear("CreateEndpoint") == 1
    held.join(10)
    assert not held.is_alive()
    assert [fault.operation for fault in added.all()] == ["PutObject"]
    assert added.clear() == 1


@pytest.mark.parametrize("change", [
    {"kind": "broken"},
    {"operation": "CreateEndpont"},
    {"operation": "s4:PutObject"},
    {"operation": "s3:CreateEndpoint"},
    {"kind": "update-rollback-failed"},
    {"operation": "GetRole", "kind": "stuck-creating"},
    {"kind": "alarm-fires"},
    {"instance_type": "ml.g5.xlarge"},
])  # fmt: skip
def test_a_fault_that_cannot_happen_is_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        faults(Fault(**{"operation": "CreateEndpoint", "kind": "throttling", **change}))


def test_every_kind_but_an_interruption_is_a_fault_of_an_update() -> None:
    kinds = KINDS.keys() - {"spot-interruption"}
    assert faults(*(Fault("sagemaker:UpdateEndpoint", kind) for kind in kinds)).all()
    assert faults(Fault("CreateTrainingJob", "spot-interruption")).all()
