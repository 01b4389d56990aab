"""What the sandbox tells apart by class, SageMaker's clients see as AWS's code and message."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.sandbox.resources import NotFoundError, RefusedForNowError
from peagle.sandbox.sagemaker import SageMakerBackend

REGION = "us-east-1"


@pytest.fixture
def backend() -> SageMakerBackend:
    return SageMakerBackend(REGION, "123456789012")


@pytest.mark.parametrize(
    "look_up",
    [
        lambda backend: backend.delete_model("gone"),
        lambda backend: backend.delete_endpoint_config("gone"),
        lambda backend: backend.delete_endpoint("gone"),
        lambda backend: backend.components.begin_deleting("gone"),
    ],
)
def test_what_does_not_exist_is_not_found(
    backend: SageMakerBackend, look_up: Callable[[SageMakerBackend], object]
) -> None:
    with pytest.raises(NotFoundError, match="Could not find") as refused:
        look_up(backend)

    assert refused.value.code == "ValidationException"


def _endpoint(**state: Any) -> Any:
    return SimpleNamespace(**{"arn": "arn", "is_busy": False, "components": {}, **state})


@pytest.mark.parametrize("state", [{"is_busy": True}, {"components": {"tiny": object()}}])
def test_a_busy_endpoint_and_one_with_copies_are_refused_for_now(
    backend: SageMakerBackend, state: dict[str, Any]
) -> None:
    backend.endpoints["tiny"] = _endpoint(**state)

    with pytest.raises(RefusedForNowError) as refused:
        backend.begin_deleting("tiny")

    assert refused.value.code == "ValidationException"


def test_a_busy_component_is_refused_for_now(backend: SageMakerBackend) -> None:
    busy: Any = SimpleNamespace(arn="arn", is_busy=True)
    backend.components.by_name["tiny"] = busy

    with pytest.raises(RefusedForNowError):
        backend.components.begin_deleting("tiny")
