"""The repository for a pair's images in ECR, and the login for it."""

from __future__ import annotations

import base64
import json
from typing import Any

from peagle.aws import image_records as images
from peagle.aws.client import Aws
from peagle.aws.errors import AlreadyExists, Missing
from peagle.checks.facts import in_ecr
from peagle.errors import CloudError
from peagle.images import Login

TAG = {"Key": "peagle:toolkit", "Value": "images"}
"""Marks a repository that `peagle image` created."""

_UNTAGGED_DAYS = 7
_LIFECYCLE = {
    "rules": [
        {
            "rulePriority": 1,
            "description": "layers that no tag names any more",
            "selection": {
                "tagStatus": "untagged",
                "countType": "sinceImagePushed",
                "countUnit": "days",
                "countNumber": _UNTAGGED_DAYS,
            },
            "action": {"type": "expire"},
        }
    ]
}
"""Images with a tag stay: an endpoint may need one whenever it scales out."""


def ensure_repository(aws: Aws, name: str) -> str:
    """The address of the repository, which is made if it is not there.

    Images in it are scanned when they are pushed, and a tag never changes its image. One that
    somebody else made is used as it is.
    """
    found = _repository(aws, name)
    if found is None:
        with images.recorded(aws, "Repository", name):
            found = _create(aws, name)
    if _is_ours(aws, found):
        policy = json.dumps(_LIFECYCLE)
        aws.call("ecr", "put_lifecycle_policy", repositoryName=name, lifecyclePolicyText=policy)
    return str(found["repositoryUri"])


def login(aws: Aws, host: str) -> Login:
    """A login for the registry ``host``, valid for 12 hours: the account's own one, or another
    that lets this account in, as AWS's with the runtimes' images does."""
    (entry,) = aws.call("ecr", "get_authorization_token")["authorizationData"][:1]
    user, _, password = base64.b64decode(entry["authorizationToken"]).decode().partition(":")
    if not password:
        raise CloudError("ECR gave a token that is none", "repeat it")
    return Login(host, user, password)


def image_digest(aws: Aws, name: str, tag: str) -> str | None:
    """The digest of the image with that tag; ``None`` if there is none."""
    try:
        found = aws.call("ecr", "describe_images", repositoryName=name,
                         imageIds=[{"imageTag": tag}])["imageDetails"]  # fmt: skip
    except Missing:
        return None
    return str(found[0]["imageDigest"]) if found else None


def digest_of(aws: Aws, image: str) -> str | None:
    """The digest of an image in anybody's ECR, by its address with a tag; ``None`` if there is
    none, or if it is elsewhere. What is asked needs no more rights than pulling it."""
    found = in_ecr(image)
    if found is None or found.tag is None:
        return None
    try:
        answer = aws.in_region(found.region).call(
            "ecr", "batch_get_image",
            registryId=found.account,
            repositoryName=found.repository,
            imageIds=[{"imageTag": found.tag}],
        )  # fmt: skip
    except Missing:
        return None
    digests = [one["imageId"].get("imageDigest") for one in answer.get("images", ())]
    return str(digests[0]) if digests and digests[0] else None


def _repository(aws: Aws, name: str) -> dict[str, Any] | None:
    try:
        found = aws.call("ecr", "describe_repositories", repositoryNames=[name])["repositories"]
    except Missing:
        return None
    return dict(found[0])


def _create(aws: Aws, name: str) -> dict[str, Any]:
    try:
        made = aws.call(
            "ecr", "create_repository",
            repositoryName=name,
            tags=[TAG],
            imageTagMutability="IMMUTABLE",
            imageScanningConfiguration={"scanOnPush": True},
            encryptionConfiguration={"encryptionType": "AES256"},
        )  # fmt: skip
    except AlreadyExists:
        made = {"repository": _repository(aws, name) or {}}
    return dict(made["repository"])


def _is_ours(aws: Aws, repository: dict[str, Any]) -> bool:
    arn = repository["repositoryArn"]
    tags = aws.call("ecr", "list_tags_for_resource", resourceArn=arn).get("tags", [])
    return TAG in tags
