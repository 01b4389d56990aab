"""What the toolkit asks IAM and ECR before it deploys, where moto does not answer as AWS does.

SimulatePrincipalPolicy   everything is allowed, as the sandbox checks no permissions
BatchGetImage             an image exists here whenever an endpoint can be created with it
"""

from __future__ import annotations

from moto.core.responses import ActionResult
from moto.ecr import urls as ecr_urls
from moto.ecr.responses import ECRResponse
from moto.iam import urls as iam_urls
from moto.iam.responses import IamResponse

from peagle.sandbox.client import ACCOUNT
from peagle.sandbox.prerequisites import is_missing_image


def install() -> None:
    """Let this process's moto use these operations. Call it before the first request."""
    iam_urls.url_paths["{0}/$"] = IamLookups.dispatch
    ecr_urls.url_paths["{0}/$"] = EcrLookups.dispatch


class IamLookups(IamResponse):
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


class EcrLookups(ECRResponse):
    """ECR with the images that are outside moto: AWS's own, and those of this machine's Docker."""

    def batch_get_image(self) -> ActionResult:
        """BatchGetImage. The digest of an image outside moto is not known, and left out."""
        account = self._get_param("registryId") or ACCOUNT
        repository = self._get_param("repositoryName")
        wanted = self._get_param("imageIds")
        registry = f"{account}.dkr.ecr.{self.region}.amazonaws.com/{repository}"
        names = [_name(one.get("imageTag"), one.get("imageDigest")) for one in wanted]
        if any(is_missing_image(registry + name, self.region) for name in names):
            return super().batch_get_image()
        if account == ACCOUNT and repository in self.ecr_backend.repositories:
            stored = self.ecr_backend.batch_get_image(repository, account, wanted)
            if not stored["failures"]:
                return ActionResult(stored)
        found = {"registryId": account, "repositoryName": repository}
        return ActionResult({"images": [{**found, "imageId": one} for one in wanted]})


def _name(tag: str | None, digest: str | None) -> str:
    return (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
