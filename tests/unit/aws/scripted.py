"""The sandbox's own SageMaker in this process, whose endpoints follow a script instead of engines.

Each time that a resource is described it goes one state further; nothing waits, and no thread runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from datetime import UTC, datetime
from functools import partial
from typing import Any

from botocore import xform_name

from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.endpoints import SandboxComponent, SandboxEndpoint, Serving, Variants
from peagle.sandbox.engines import EngineInstance
from peagle.sandbox.launch import LaunchSpec
from peagle.sandbox.sagemaker import (
    ENDPOINT,
    HANDLERS,
    EndpointConfig,
    Parameters,
    SageMakerBackend,
    SandboxModel,
)

REGION = "us-east-1"
State = tuple[str, str | None]
"""A status, and the FailureReason that comes with it."""


class ScriptedEngine(EngineInstance):
    """An engine that starts at once, and never ends by itself."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec, self.process, self.in_progress = spec, None, 0

    def start(self, on_chosen: object) -> None: ...
    def drain(self) -> None: ...
    def end(self) -> None: ...
    def end_reason(self) -> None:
        return None


class _Scripted(Serving):
    """``script`` are the states to come, the present one first; ``updates`` counts the engines that
    were replaced. A change takes effect where ``InService`` without a reason is described."""

    new_engine = ScriptedEngine

    def __init__(self, sagemaker: ScriptedSageMaker, *arguments: Any) -> None:
        self._sagemaker, self._work = sagemaker, _no_work
        self.updates = 0
        super().__init__(*arguments)
        self.creation_time = sagemaker.now()

    @property
    def script(self) -> list[State]:
        return self._script

    @script.setter
    def script(self, states: list[State]) -> None:
        self._script = states
        self._set_status(*states[0])

    def _begin(self, status: str, work: Callable[[], str], undone: str = "InService") -> None:
        self._work, self._stage = work, "Creating"  # as while new engines start
        self.script = self._sagemaker.next_script(status)

    def _bake(self, *_: object) -> None:
        """The script says whether an alarm fires."""

    def _set_status(self, status: str, reason: str | None = None) -> None:
        self.status, self.failure_reason = status, reason
        self.last_modified_time = self._sagemaker.now()

    def settle(self) -> None:
        """Before the present state is described."""
        if self.status in ("InService", "Failed"):
            work, self._work, before = self._work, _no_work, self.current
            if not self.failure_reason:
                work()
                self.updates += before is not None and before is not self.current
            self._end_update()

    def advance(self) -> None:
        """After the present state was described."""
        if len(self._script) > 1:
            self._script.pop(0)
            self.status, self.failure_reason = self._script[0]
        elif self.status == "Deleting":
            self._work()


def _no_work() -> str:
    return ""


class ScriptedEndpoint(_Scripted, SandboxEndpoint):  # type: ignore[misc]
    @property
    def count(self) -> int:
        """How many instances of the first variant run."""
        assert self.current is not None
        return self.current.count(self.current.variants[0])

    @count.setter
    def count(self, count: int) -> None:
        """As another user's UpdateEndpointWeightsAndCapacities, which is done."""
        assert self.current is not None
        self._work = _no_work
        self.current.resize(self.current.variants[0], count, self.tag_engine)
        self.production_variants[0]["DesiredInstanceCount"] = count


class ScriptedComponent(_Scripted, SandboxComponent):
    pass


def _next_state(resource: Any) -> dict[str, Any]:
    resource.settle()
    described: dict[str, Any] = resource.response_object
    resource.advance()
    return described


class ScriptedSageMaker(SageMakerBackend):
    """``scripts`` are the states that the next changes of endpoints go through."""

    def __init__(self, read_clock: Callable[[], float]) -> None:
        super().__init__(REGION, ACCOUNT)
        self._read_clock = read_clock
        self.scripts: list[list[State]] = []
        self.new_endpoint = partial(ScriptedEndpoint, self)
        self.new_component = partial(ScriptedComponent, self)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._read_clock(), UTC)

    def next_script(self, status: str) -> list[State]:
        if status == "Deleting":
            return [(status, None)]
        return self.scripts.pop(0) if self.scripts else [(status, None), ("InService", None)]

    def register_model(self, parameters: Parameters) -> SandboxModel:
        model = super().register_model(deepcopy(parameters))
        model.creation_time = self.now()
        return model

    def check_model(self, parameters: Parameters) -> None:
        """The plans of unit tests name roles, images and weights that do not exist."""

    def register_endpoint_config(self, parameters: Parameters) -> EndpointConfig:
        config = super().register_endpoint_config(deepcopy(parameters))
        config.creation_time = self.now()
        config.parameters = {**config.parameters, "ProductionVariants": config.production_variants}
        return config

    def describe_endpoint(self, endpoint_name: str) -> dict[str, Any]:
        return _next_state(self._find(ENDPOINT, self.endpoints, endpoint_name))

    def describe_component(self, name: str) -> dict[str, Any]:
        return _next_state(self.find_component(name))

    def _launch_specs(
        self, endpoint_name: str, variants: Variants, component: str = ""
    ) -> list[LaunchSpec]:
        for variant in variants:
            self.describe_model(variant.get("ModelName", ""))
        return [
            LaunchSpec(
                REGION, endpoint_name, variant["VariantName"], {}, (), 0,
                count=int(variant.get("InitialInstanceCount") or 1), component=component,
            )
            for variant in variants
        ]  # fmt: skip

    def _check_quota(self, more: Mapping[str, int], *_: object) -> None:
        """Quotas are the account's."""

    def reset(self) -> None:
        """moto's reset is of accounts that live on; this one ends with its test."""

    def call(self, operation: str, parameters: Parameters) -> Any:
        """One operation, as boto3 names it. Raises moto's ServiceException."""
        return _OPERATIONS[operation](self, parameters)

    @classmethod
    def has(cls, operation: str) -> bool:
        return operation in _OPERATIONS


_OPERATIONS: dict[str, Callable[[ScriptedSageMaker, Parameters], Any]] = {
    **{xform_name(name): handler for name, handler in HANDLERS.items()},
    "describe_model": lambda backend, p: backend.describe_model(p["ModelName"]).response_object,
    "describe_endpoint_config": lambda backend, p: backend.describe_endpoint_config(
        p["EndpointConfigName"]
    ),
    "describe_endpoint": lambda backend, p: backend.describe_endpoint(p["EndpointName"]),
    "describe_inference_component": lambda backend, p: backend.describe_component(
        p["InferenceComponentName"]
    ),
    "delete_model": lambda backend, p: backend.delete_model(p["ModelName"]),
    "delete_endpoint_config": lambda backend, p: backend.delete_endpoint_config(
        p["EndpointConfigName"]
    ),
    "list_endpoints": lambda backend, p: {
        "Endpoints": [endpoint.summary() for endpoint in backend.endpoints.values()]
    },
    "update_endpoint_weights_and_capacities": lambda backend, p: {
        "EndpointArn": backend.update_endpoint_weights_and_capacities(
            p["EndpointName"], p["DesiredWeightsAndCapacities"]
        )
    },
}
"""As moto's responses call the backend, where the sandbox has no handler of its own."""
