"""SageMaker's operations in the sandbox that differ from moto's; ``validation`` precedes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.sagemaker import urls
from moto.sagemaker.responses import SageMakerResponse

from peagle.sandbox.sagemaker import SageMakerBackend


def install() -> None:
    """Let this process's moto use these operations. Call it before the first request."""
    urls.url_paths["{0}/$"] = Operations.dispatch


class Operations(SageMakerResponse):
    """The operations that differ from moto's."""

    @property
    def sagemaker_backend(self) -> SageMakerBackend:
        backend = super().sagemaker_backend
        assert isinstance(backend, SageMakerBackend)
        return backend

    def create_model(self) -> ActionResult:
        return self._apply(self.sagemaker_backend.register_model)

    def create_endpoint_config(self) -> ActionResult:
        register = self.sagemaker_backend.register_endpoint_config
        return self._apply(register)

    def create_endpoint(self) -> ActionResult:
        return self._apply(self.sagemaker_backend.register_endpoint)

    def update_endpoint(self) -> ActionResult:
        """UpdateEndpoint, which moto lacks."""
        return self._apply(self.sagemaker_backend.update_endpoint)

    def _apply(self, change: Callable[[dict[str, Any]], Any]) -> ActionResult:
        return ActionResult(change(self.params).response_create)

    def delete_endpoint(self) -> ActionResult:
        """DeleteEndpoint, which responds before the endpoint is deleted."""
        self.sagemaker_backend.begin_deleting(self.params["EndpointName"])
        return EmptyResult()
