"""ECR: the repository for a pair's images, digests and logins; and what `peagle image` created."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any, Literal

from peagle.aws import s3
from peagle.aws.client import Aws
from peagle.aws.errors import Missing
from peagle.checks.facts import parse_ecr_image
from peagle.errors import CloudError, parsing
from peagle.images.build import Login
from peagle.images.docker import Progress
from peagle.store import home, read_record, write_json


def document(name: str, **values: str) -> Any:
    """A JSON document of the folder ``documents``, with these values for its variables."""
    text = (Path(__file__).parent / "documents" / f"{name}.json").read_text(encoding="utf-8")
    return json.loads(Template(text).substitute(values) if values else text)


Kind = Literal["Repository", "Project", "LogGroup", "Role", "Object", "Bucket"]


@dataclass(frozen=True)
class ImageResource:
    """A resource in the account; the name of an Object is ``bucket/key``."""

    kind: Kind
    name: str


def image_resources(aws: Aws) -> tuple[ImageResource, ...]:
    """The recorded resources in the connection's region, in the order of removal. Raises UserError
    for a file that cannot be read."""
    fix = "repair the file, or remove the repositories and builds in the account, then the file"
    resources = read_record(_file(aws), list[ImageResource], fix) or []
    order = list(_REMOVERS)
    return tuple(sorted(resources, key=lambda made: (order.index(made.kind), made.name)))


def record_resource(aws: Aws, kind: Kind, name: str) -> None:
    """Record a resource that is about to be created, so that it can be removed in any case."""
    recorded, made = image_resources(aws), ImageResource(kind, name)
    if made not in recorded:
        write_json(_file(aws), [asdict(entry) for entry in (*recorded, made)])


def remove_image_resources(aws: Aws, say: Progress) -> tuple[ImageResource, ...]:
    """Remove all recorded resources, images included. May be repeated after a failure."""
    removed = image_resources(aws)
    for made in removed:
        say(f"removing {made.kind} {made.name}")
        with suppress(Missing):
            _REMOVERS[made.kind](aws, made.name)
    _file(aws).unlink(missing_ok=True)
    return removed


def _file(aws: Aws) -> Path:
    return home() / "images" / aws.scope / f"{aws.region}.json"


def _remove_role(aws: Aws, name: str) -> None:
    for policy in aws.call("iam", "list_role_policies", RoleName=name)["PolicyNames"]:
        aws.call("iam", "delete_role_policy", RoleName=name, PolicyName=policy)
    aws.call("iam", "delete_role", RoleName=name)


_REMOVERS: dict[Kind, Callable[[Aws, str], object]] = {
    "Project": lambda aws, name: aws.call("codebuild", "delete_project", name=name),
    "LogGroup": lambda aws, name: aws.call("logs", "delete_log_group", logGroupName=name),
    "Role": _remove_role,
    "Object": lambda aws, name: s3.delete_objects(
        aws, name.partition("/")[0], [name.partition("/")[2]]
    ),
    # Only an empty one: deployments keep their weights in the same bucket.
    "Bucket": lambda aws, name: (
        s3.bucket_exists(aws, name) and s3.is_our_bucket(aws, name) and s3.delete_bucket(aws, name)
    ),
    "Repository": lambda aws, name: aws.call(
        "ecr", "delete_repository", repositoryName=name, force=True
    ),
}
"""In the order of removal: first what uses another one. Missing resources are skipped."""


TAG = {"Key": "peagle:toolkit", "Value": "images"}
"""Marks a repository that `peagle image` created."""

_LIFECYCLE = document("ecr-lifecycle")
"""Images with a tag stay: an endpoint may need one whenever it scales out."""


def ensure_repository(aws: Aws, name: str, more_tags: Mapping[str, str] = {}) -> str:
    """The address of the repository. A new one has ``more_tags``, scans images when they are
    pushed, and its images keep their tags; one that exists stays unchanged."""
    try:
        named = {"repositoryNames": [name]}
        repository = aws.call("ecr", "describe_repositories", **named)["repositories"][0]
    except Missing:
        record_resource(aws, "Repository", name)
        repository = aws.call(
            "ecr", "create_repository",
            repositoryName=name,
            tags=[TAG, *({"Key": key, "Value": text} for key, text in more_tags.items())],
            imageTagMutability="IMMUTABLE",
            imageScanningConfiguration={"scanOnPush": True},
            encryptionConfiguration={"encryptionType": "AES256"},
        )["repository"]  # fmt: skip
        policy = json.dumps(_LIFECYCLE)
        aws.call("ecr", "put_lifecycle_policy", repositoryName=name, lifecyclePolicyText=policy)
    return str(repository["repositoryUri"])


def login(aws: Aws, host: str) -> Login:
    """A login for the registry ``host``, valid for 12 hours: the account's own registry, or another
    that admits this account, such as AWS's registry of runtime images."""
    with parsing("ECR's token", CloudError, "run the command again"):
        (entry,) = aws.call("ecr", "get_authorization_token")["authorizationData"][:1]
        user, password = base64.b64decode(entry["authorizationToken"]).decode().split(":", 1)
    return Login(host, user, password)


def digest_by_address(aws: Aws, address: str) -> str | None:
    """The digest of an image by its address with a tag; ``None`` if it does not exist or is not in
    ECR."""
    image = parse_ecr_image(address)
    if image is None or not image.tag:
        return None
    response = aws.in_region(image.region).find(
        "ecr", "batch_get_image",
        registryId=image.account,
        repositoryName=image.repository,
        imageIds=[{"imageTag": image.tag}],
    )  # fmt: skip
    images = response["images"] if response else ()
    return next((listed["imageId"].get("imageDigest") for listed in images), None)
