"""ECR: the repository for a pair's images, image digests, and logins."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from peagle.aws.client import Aws
from peagle.aws.errors import AlreadyExists, Missing
from peagle.aws.image_records import record_resource
from peagle.checks.facts import parse_ecr_image
from peagle.errors import CloudError, parsing
from peagle.images import Login

TAG = {"Key": "peagle:toolkit", "Value": "images"}
"""Marks a repository that `peagle image` created."""

_LIFECYCLE = {
    "rules": [
        {
            "rulePriority": 1,
            "description": "untagged images",
            "selection": {
                "tagStatus": "untagged",
                "countType": "sinceImagePushed",
                "countUnit": "days",
                "countNumber": 7,
            },
            "action": {"type": "expire"},
        }
    ]
}
"""Images with a tag stay: an endpoint may need one whenever it scales out."""


def ensure_repository(aws: Aws, name: str, more_tags: Mapping[str, str] = {}) -> str:
    """The address of the repository, which is created if it does not exist.

    A new repository has ``more_tags``, scans images when they are pushed, and its images keep their
    tags. The settings of a repository that something else created stay unchanged.
    """
    found = _repository(aws, name)
    if found is None:
        record_resource(aws, "Repository", name)
        found = _create(aws, name, more_tags)
    tags = aws.call("ecr", "list_tags_for_resource", resourceArn=found["repositoryArn"])
    if TAG in tags.get("tags", []):
        policy = json.dumps(_LIFECYCLE)
        aws.call("ecr", "put_lifecycle_policy", repositoryName=name, lifecyclePolicyText=policy)
    return str(found["repositoryUri"])


def login(aws: Aws, host: str) -> Login:
    """A login for the registry ``host``, valid for 12 hours: the account's own registry, or another
    that admits this account, such as AWS's registry of runtime images."""
    with parsing("ECR's token", CloudError, "run the command again"):
        (entry,) = aws.call("ecr", "get_authorization_token")["authorizationData"][:1]
        user, _, password = base64.b64decode(entry["authorizationToken"]).decode().partition(":")
    if not password:
        raise CloudError(
            "ECR returned an invalid token", "run the command again", code="invalid-response"
        )
    return Login(host, user, password)


def image_digest(aws: Aws, name: str, tag: str) -> str | None:
    """The digest of the account's image with that tag; ``None`` if there is none."""
    image = [{"imageTag": tag}]
    try:
        found = aws.call("ecr", "describe_images", repositoryName=name, imageIds=image)
    except Missing:
        return None
    return next((str(one["imageDigest"]) for one in found["imageDetails"]), None)


def digest_by_address(aws: Aws, image: str) -> str | None:
    """The digest of an image in the ECR of any account, by its address with a tag; ``None`` if it
    does not exist or is not in ECR. Needs only the permissions for pulling."""
    found = parse_ecr_image(image)
    if found is None or found.tag is None:
        return None
    try:
        response = aws.in_region(found.region).call(
            "ecr", "batch_get_image",
            registryId=found.account,
            repositoryName=found.repository,
            imageIds=[{"imageTag": found.tag}],
        )  # fmt: skip
    except Missing:
        return None
    return next((one["imageId"].get("imageDigest") for one in response.get("images", ())), None)


def _repository(aws: Aws, name: str) -> dict[str, Any] | None:
    try:
        found = aws.call("ecr", "describe_repositories", repositoryNames=[name])
    except Missing:
        return None
    return next(iter(found["repositories"]), None)


def _create(aws: Aws, name: str, more_tags: Mapping[str, str]) -> dict[str, Any]:
    try:
        made = aws.call(
            "ecr", "create_repository",
            repositoryName=name,
            tags=[TAG, *({"Key": key, "Value": text} for key, text in more_tags.items())],
            imageTagMutability="IMMUTABLE",
            imageScanningConfiguration={"scanOnPush": True},
            encryptionConfiguration={"encryptionType": "AES256"},
        )  # fmt: skip
    except AlreadyExists:
        found = _repository(aws, name)
        if found is None:
            raise
        return found
    repository: dict[str, Any] = made["repository"]
    return repository
