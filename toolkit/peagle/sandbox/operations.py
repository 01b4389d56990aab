"""SageMaker's operations in the sandbox: validate the request, then call the backend.

Clients check only part of a request, moto almost nothing. ``peagle.request_validation`` checks
everything that AWS checks, here and before the toolkit sends a request. Operations that are missing
here are moto's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moto.core.responses import ActionResult, EmptyResult
from moto.sagemaker import urls
from moto.sagemaker.exceptions import ValidationError
from moto.sagemaker.responses import SageMakerResponse

from peagle.request_validation import validate
from peagle.request_validation.model import UnknownKey
from peagle.sandbox.sagemaker import SageMakerBackend
from peagle.sandbox.services import endpoint_types


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
        return self._apply("create_model", self.sagemaker_backend.register_model)

    def create_endpoint_config(self) -> ActionResult:
        register = self.sagemaker_backend.register_endpoint_config
        return self._apply("create_endpoint_config", register)

    def create_endpoint(self) -> ActionResult:
        return self._apply("create_endpoint", self.sagemaker_backend.register_endpoint)

    def update_endpoint(self) -> ActionResult:
        """UpdateEndpoint, which moto lacks."""
        return self._apply("update_endpoint", self.sagemaker_backend.update_endpoint)

    def _apply(self, operation: str, change: Callable[[dict[str, Any]], Any]) -> ActionResult:
        _validate(operation, self.params, self.region)
        return ActionResult(change(self.params).response_create)

    def delete_endpoint(self) -> ActionResult:
        """DeleteEndpoint, which responds before the endpoint is deleted."""
        self.sagemaker_backend.begin_deleting(self.params["EndpointName"])
        return EmptyResult()


def _validate(operation: str, parameters: Mapping[str, Any], region: str) -> None:
    """Raise ValidationError, with every problem, if AWS would reject the request.

    Instance types of the catalogue are allowed even if botocore does not know them yet. Keys that
    botocore does not know are ignored, as a client may be newer than the sandbox.
    """
    found = [
        problem.aws_message or problem.text
        for problem in validate(
            "sagemaker", operation, _without_nulls(parameters), region, endpoint_types()
        )
        if not isinstance(problem, UnknownKey)
    ]
    if found:
        errors = "error" if len(found) == 1 else "errors"
        raise ValidationError(f"{len(found)} validation {errors} detected: {'; '.join(found)}")


def _without_nulls(value: Any) -> Any:
    """``value`` without members that are null, which AWS treats as absent."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
