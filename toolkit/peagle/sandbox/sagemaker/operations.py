"""SageMaker's calls for models, endpoint configurations and endpoints: check, do, answer.

moto dispatches a call to the method of its name in snake case; what is not here is moto's own.
"""

from __future__ import annotations

from moto.core.responses import ActionResult, EmptyResult
from moto.sagemaker.responses import SageMakerResponse

from peagle.sandbox.sagemaker.backend import Backend
from peagle.sandbox.sagemaker.refusals import check, check_environments, refuse


class Operations(SageMakerResponse):
    """The calls that differ from moto's."""

    @property
    def sagemaker_backend(self) -> Backend:
        """The region's resources."""
        backend = super().sagemaker_backend
        assert isinstance(backend, Backend)
        return backend

    def create_model(self) -> ActionResult:
        """CreateModel."""
        check("CreateModel", self.params)
        primary, several = self.params.get("PrimaryContainer"), self.params.get("Containers")
        if bool(primary) == bool(several):
            refuse(["Exactly one of PrimaryContainer and Containers must be given"])
        check_environments([primary] if primary else several)
        return ActionResult(self.sagemaker_backend.register_model(self.params).response_create)

    def create_endpoint_config(self) -> ActionResult:
        """CreateEndpointConfig."""
        check("CreateEndpointConfig", self.params)
        config = self.sagemaker_backend.register_endpoint_config(self.params)
        return ActionResult(config.response_create)

    def create_endpoint(self) -> ActionResult:
        """CreateEndpoint."""
        check("CreateEndpoint", self.params)
        endpoint = self.sagemaker_backend.create_endpoint(
            endpoint_name=self.params["EndpointName"],
            endpoint_config_name=self.params["EndpointConfigName"],
            tags=self.params.get("Tags"),
            deployment_config=self.params.get("DeploymentConfig"),
        )
        return ActionResult(endpoint.response_create)

    def update_endpoint(self) -> ActionResult:
        """UpdateEndpoint, which moto lacks."""
        check("UpdateEndpoint", self.params)
        endpoint = self.sagemaker_backend.update_endpoint(
            endpoint_name=self.params["EndpointName"],
            endpoint_config_name=self.params["EndpointConfigName"],
            deployment_config=self.params.get("DeploymentConfig"),
            retain_deployment_config=self.params.get("RetainDeploymentConfig", False),
        )
        return ActionResult(endpoint.response_create)

    def delete_endpoint(self) -> ActionResult:
        """DeleteEndpoint, which answers before the endpoint is gone."""
        self.sagemaker_backend.begin_deleting(self.params["EndpointName"])
        return EmptyResult()
