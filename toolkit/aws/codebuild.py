"""Build and push an image on AWS, for people without Docker or without room for its base."""

from __future__ import annotations

import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.aws import ecr, images, storage
from toolkit.aws.codebuild_role import ensure_role
from toolkit.aws.errors import AlreadyThere, Missing
from toolkit.aws.session import Aws
from toolkit.aws.watch import Clock
from toolkit.errors import CloudError
from toolkit.images.archive import Member

PREFIX = "peagle-images/"
"""Below it lie the build contexts in the bucket."""

BUILD_IMAGE = "aws/codebuild/standard:7.0"
COMPUTE = "BUILD_GENERAL1_LARGE"
"""The smallest with room for an image of more than 10 GB (128 GB of disk, 8 vCPUs)."""

LIMIT_MINUTES = 120
_POLL_SECONDS = 5.0
_ROLE_TRIES, _ROLE_SECONDS = 12, 5.0
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_KEPT_LINES = 20

BUILDSPEC = {
    "version": 0.2,
    "phases": {
        "pre_build": {
            "commands": [
                'for host in "$BASE_REGISTRY" "$REGISTRY"; do aws ecr get-login-password '
                '| docker login --username AWS --password-stdin "$host" || exit 1; done'
            ]
        },
        "build": {"commands": ['docker build --platform linux/amd64 --tag "$ADDRESS" .']},
        "post_build": {
            "commands": [
                'test "$CODEBUILD_BUILD_SUCCEEDING" = 1 || exit 1',
                'docker push "$ADDRESS"',
            ]
        },
    },
}
"""What CodeBuild runs. Everything that differs between builds comes as a variable."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class BuildOrder:
    """``context`` is built FROM an image of ``base_registry`` ("" for one that needs no login) and
    pushed as ``repository:tag``; ``digest`` is the context's."""

    repository: str
    tag: str
    base_registry: str
    context: Iterable[Member]
    digest: str


@dataclass(frozen=True)
class BuiltThere:
    """Where the image is, with its digest once ECR knows it."""

    address: str
    digest: str | None


def build(aws: Aws, order: BuildOrder, say: Say, clock: Clock | None = None) -> BuiltThere:
    """Have the image built and pushed; its log is told line by line.

    Every step may be repeated. An image of that tag which is there already is not built again: a
    tag never changes its image. Raises CloudError with the log's last words.
    """
    clock = clock or Clock()
    uri = ecr.ensure_repository(aws, order.repository)
    address = f"{uri}:{order.tag}"
    there = ecr.image_digest(aws, order.repository, order.tag)
    if there:
        say(f"{address} is there already")
        return BuiltThere(address, there)
    bucket, key = _upload(aws, order, say)
    project = _ensure_project(aws, order, bucket, key, clock)
    say(f"CodeBuild project {project}: building {address}")
    started = aws.call(
        "codebuild", "start_build",
        projectName=project,
        sourceTypeOverride="S3",
        sourceLocationOverride=f"{bucket}/{key}",
        environmentVariablesOverride=_variables(order, uri, address),
    )["build"]  # fmt: skip
    _wait(aws, str(started["id"]), say, clock)
    return BuiltThere(address, ecr.image_digest(aws, order.repository, order.tag))


def zip_file(members: Iterable[Member], path: Path) -> None:
    """The context as CodeBuild takes it: the same files, the same bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for member in sorted(members, key=lambda one: one.path):
            info = zipfile.ZipInfo(member.path, _EARLIEST)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as stream:
                for chunk in member.chunks():
                    stream.write(chunk)


def _upload(aws: Aws, order: BuildOrder, say: Say) -> tuple[str, str]:
    """Bucket and key of the context."""
    bucket, key = storage.default_bucket(aws.account, aws.region), f"{PREFIX}{order.digest}.zip"
    if not storage.bucket_exists(aws, bucket):
        with images.making(aws, "Bucket", bucket):
            storage.create_bucket(aws, bucket)
    with tempfile.TemporaryDirectory(prefix="peagle-context-") as folder:
        path = Path(folder) / "context.zip"
        zip_file(order.context, path)
        say(f"uploading the build context ({path.stat().st_size / 1e6:.1f} MB)")
        with images.making(aws, "Object", f"{bucket}/{key}"):
            aws.upload(path, bucket, key, {}, lambda count: None)
    return bucket, key


def _ensure_project(aws: Aws, order: BuildOrder, bucket: str, key: str, clock: Clock) -> str:
    name = f"{order.repository}-{aws.region}"
    role = ensure_role(aws, name, order.repository, bucket, PREFIX)
    wanted = {
        "name": order.repository,
        "description": "Builds images of peagle-toolkit",
        "source": {"type": "S3", "location": f"{bucket}/{key}", "buildspec": json.dumps(BUILDSPEC)},
        "artifacts": {"type": "NO_ARTIFACTS"},
        "environment": {
            "type": "LINUX_CONTAINER",
            "image": BUILD_IMAGE,
            "computeType": COMPUTE,
            "privilegedMode": True,
        },
        "serviceRole": role,
        "timeoutInMinutes": LIMIT_MINUTES,
        "tags": [{"key": "peagle:toolkit", "value": "images"}],
    }
    with images.making(aws, "Project", order.repository):
        _create_project(aws, wanted, clock)
    return order.repository


def _create_project(aws: Aws, wanted: dict[str, Any], clock: Clock) -> None:
    """IAM takes some seconds until others see a new role."""
    for left in range(_ROLE_TRIES, 0, -1):
        try:
            aws.call("codebuild", "create_project", **wanted)
            return
        except AlreadyThere:
            return
        except CloudError as error:
            if "AssumeRole" not in error.message or left == 1:
                raise
        clock.sleep(_ROLE_SECONDS)


def _variables(order: BuildOrder, uri: str, address: str) -> list[dict[str, str]]:
    registry = uri.partition("/")[0]
    values = {
        "ADDRESS": address,
        "REGISTRY": registry,
        "BASE_REGISTRY": order.base_registry or registry,
    }
    return [{"name": name, "value": value, "type": "PLAINTEXT"} for name, value in values.items()]


def _wait(aws: Aws, build_id: str, say: Say, clock: Clock) -> None:
    log = _Log(aws)
    while True:
        (found,) = aws.call("codebuild", "batch_get_builds", ids=[build_id])["builds"]
        for line in log.new(found.get("logs") or {}):
            say(line)
        status = found["buildStatus"]
        if status == "SUCCEEDED":
            return
        if status != "IN_PROGRESS":
            last = f": {log.last[-1]}" if log.last else ""
            raise CloudError(
                f"the build ended as {status} in {found.get('currentPhase')}{last}",
                f"aws codebuild batch-get-builds --ids {build_id}",
            )
        clock.sleep(_POLL_SECONDS)


@dataclass
class _Log:
    """A build's log, every line once."""

    aws: Aws
    last: list[str] = field(default_factory=list)
    _token: str | None = None

    def new(self, place: dict[str, Any]) -> Iterator[str]:
        group, stream = place.get("groupName"), place.get("streamName")
        while group and stream:
            asked = {"nextToken": self._token} if self._token else {}
            try:
                page = self.aws.call("logs", "get_log_events", logGroupName=group,
                                     logStreamName=stream, startFromHead=True, **asked)  # fmt: skip
            except Missing:
                return
            for event in page["events"]:
                line = str(event["message"]).rstrip()
                if line:
                    self.last = [*self.last[-_KEPT_LINES:], line]
                    yield line
            if page.get("nextForwardToken") == self._token:
                return
            self._token = page.get("nextForwardToken")
