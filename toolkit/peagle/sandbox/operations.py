"""Where the sandbox differs from moto: operations, the role that exists, and faster starts.

IAM's SimulatePrincipalPolicy   everything is allowed, as the sandbox checks no permissions
ECR's BatchGetImage             an image exists whenever an endpoint can be created with it

``validation`` precedes the operations.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from moto.core.common_models import BaseModel
from moto.core.responses import ActionResult, EmptyResult
from moto.ecr import urls as ecr_urls
from moto.ecr.responses import ECRResponse
from moto.iam import urls as iam_urls
from moto.iam.models import IAMBackend, ManagedPolicy, iam_backends
from moto.iam.responses import IamResponse
from moto.sagemaker import urls as sagemaker_urls
from moto.sagemaker.responses import SageMakerResponse

from peagle.sandbox.client import ACCOUNT, EXECUTION_ROLE
from peagle.sandbox.prerequisites import is_missing_image
from peagle.sandbox.sagemaker import SageMakerBackend

_TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


def install() -> None:
    """Let this process's moto use these operations. Call it before the first request."""
    iam_urls.url_paths["{0}/$"] = IamOperations.dispatch
    ecr_urls.url_paths["{0}/$"] = EcrOperations.dispatch
    sagemaker_urls.url_paths["{0}/$"] = SageMakerOperations.dispatch


class SageMakerOperations(SageMakerResponse):
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

    def create_inference_component(self) -> ActionResult:
        return self._apply(self.sagemaker_backend.components.create)

    def update_inference_component(self) -> ActionResult:
        return self._apply(self.sagemaker_backend.components.update)

    def update_inference_component_runtime_config(self) -> ActionResult:
        return self._apply(self.sagemaker_backend.components.update_runtime_config)

    def describe_inference_component(self) -> ActionResult:
        name = self.params["InferenceComponentName"]
        return ActionResult(self.sagemaker_backend.components.find(name).response_object)

    def list_inference_components(self) -> ActionResult:
        """ListInferenceComponents, of one endpoint or of all; in one answer."""
        endpoint = self.params.get("EndpointNameEquals")
        found = self.sagemaker_backend.components.by_name.values()
        listed = [one.summary for one in found if endpoint in (None, one.endpoint_name)]
        return ActionResult({"InferenceComponents": listed})

    def delete_inference_component(self) -> ActionResult:
        """DeleteInferenceComponent, which responds before the copies have ended."""
        components = self.sagemaker_backend.components
        components.begin_deleting(self.params["InferenceComponentName"])
        return EmptyResult()

    def _apply(self, change: Callable[[dict[str, Any]], Any]) -> ActionResult:
        return ActionResult(change(self.params).response_create)

    def delete_endpoint(self) -> ActionResult:
        """DeleteEndpoint, which responds before the endpoint is deleted."""
        self.sagemaker_backend.begin_deleting(self.params["EndpointName"])
        return EmptyResult()


class IamOperations(IamResponse):
    """IAM with the operation that moto lacks."""

    def simulate_principal_policy(self) -> ActionResult:
        """SimulatePrincipalPolicy of a role. Raises NoSuchEntity when it does not exist."""
        self.backend.get_role(str(self._get_param("PolicySourceArn")).rpartition("/")[2])
        results = [
            {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}
            for action in self._get_param("ActionNames")
            for resource in self._get_param("ResourceArns", ["*"])
        ]
        return ActionResult({"EvaluationResults": results, "IsTruncated": False})


class EcrOperations(ECRResponse):
    """ECR with the images that are outside moto: AWS's own, and those of this machine's Docker."""

    def batch_get_image(self) -> ActionResult:
        """BatchGetImage. The digest of an image outside moto is not known, and left out."""
        account = self._get_param("registryId") or ACCOUNT
        repository = self._get_param("repositoryName")
        asked_for = self._get_param("imageIds")
        registry = f"{account}.dkr.ecr.{self.region}.amazonaws.com/{repository}"
        names = [_name(one.get("imageTag"), one.get("imageDigest")) for one in asked_for]
        if any(is_missing_image(registry + name, self.region) for name in names):
            return super().batch_get_image()
        if account == ACCOUNT and repository in self.ecr_backend.repositories:
            stored = self.ecr_backend.batch_get_image(repository, account, asked_for)
            if not stored["failures"]:
                return ActionResult(stored)
        found = {"registryId": account, "repositoryName": repository}
        return ActionResult({"images": [{**found, "imageId": one} for one in asked_for]})


def _name(tag: str | None, digest: str | None) -> str:
    return (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


class Iam(IAMBackend):
    """moto's IAM, which reads AWS's 1,600 managed policies once.

    moto reads them for each of five partitions, and again after every reset, which takes seconds.
    """

    _read: list[ManagedPolicy] = []

    @property
    def _url_module(self) -> Any:
        """moto derives it from the class's module, which here is not moto's."""
        return iam_urls

    def _init_aws_policies(self) -> list[ManagedPolicy]:
        if self.partition != "aws":
            return []
        if not Iam._read:
            Iam._read = super()._init_aws_policies()
        return [copy.copy(policy) for policy in Iam._read]


def install_quick_start() -> None:
    """Let this process's moto use ``Iam``, and forget what was deleted: moto keeps a list of all
    objects, for a page that the sandbox does not have. Call it before the first request."""
    iam_backends.backend = Iam
    type.__setattr__(BaseModel, "__new__", lambda cls, *_, **__: object.__new__(cls))


def create_role() -> None:
    """Create what the account contains from the start: the execution role for SageMaker."""
    iam_backends[ACCOUNT]["aws"].create_role(
        role_name=EXECUTION_ROLE,
        assume_role_policy_document=json.dumps(_TRUST),
        path="/",
        permissions_boundary=None,
        description="Execution role of the sandbox",
        tags=[],
        max_session_duration="3600",
    )
