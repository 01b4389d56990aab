"""Build and push an image on AWS, for people without Docker or without room for its base."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.aws import ecr
from peagle.aws import image_records as images
from peagle.aws import s3 as storage
from peagle.aws.build_role import LOG_GROUPS, BuildScope, ensure_role
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AlreadyExists, Missing
from peagle.errors import CloudError
from peagle.images.context import Member, explain_full_disk

PREFIX = "peagle-images/"
"""Below it lie the build contexts in the bucket."""

BUILD_IMAGE = "aws/codebuild/standard:7.0"
COMPUTE = "BUILD_GENERAL1_LARGE"
"""The smallest with room for an image of more than 10 GB (128 GB of disk, 8 vCPUs)."""

LIMIT_MINUTES = 120
_POLL_SECONDS = 5.0
_MB = 1e6
_ROLE_TRIES, _ROLE_SECONDS = 12, 5.0
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_KEPT_LINES = 20
_LONGEST_ROLE = 64

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
    context: Sequence[Member]
    digest: str


@dataclass(frozen=True)
class RemoteBuild:
    """Where the image is, with its digest once ECR knows it."""

    address: str
    digest: str | None


def build(aws: Aws, order: BuildOrder, say: Say, clock: Clock | None = None) -> RemoteBuild:
    """Have the image built and pushed; its log is told line by line.

    Every step may be repeated. An image of that tag which is there already is not built again: a
    tag never changes its image. An interrupt ends the build. Raises CloudError with the log's last
    words.
    """
    clock = clock or Clock()
    uri = ecr.ensure_repository(aws, order.repository)
    address = f"{uri}:{order.tag}"
    there = ecr.image_digest(aws, order.repository, order.tag)
    if there:
        say(f"{address} is there already, and a tag never changes its image")
        return RemoteBuild(address, there)
    bucket, key = _upload(aws, order, say)
    project = project_name(order.repository)
    role = ensure_role(aws, _role_name(project, aws.region),
                       BuildScope(order.repository, bucket, PREFIX, project))  # fmt: skip
    with images.recorded(aws, "Project", project):
        _create_project(aws, _project(project, role, f"{bucket}/{key}"), clock)
    say(f"CodeBuild project {project}: building {address}")
    asked = _start(project, f"{bucket}/{key}", _variables(order, uri, address))
    _run(aws, asked, say, clock)
    return RemoteBuild(address, ecr.image_digest(aws, order.repository, order.tag))


def project_name(repository: str) -> str:
    """The project of a repository. CodeBuild takes fewer characters: then with a digest, so that
    no two repositories share one."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", repository)
    return plain if plain == repository else f"{plain}-{_short(repository)}"


def _role_name(project: str, region: str) -> str:
    name = f"{project}-{region}"
    if len(name) <= _LONGEST_ROLE:
        return name
    return f"{name[: _LONGEST_ROLE - 9]}-{_short(name)}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


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
        with images.recorded(aws, "Bucket", bucket):
            storage.create_bucket(aws, bucket)
    size = sum(member.size for member in order.context)
    with (
        explain_full_disk(f"the build context of {_kilobytes(size)}"),
        tempfile.TemporaryDirectory(prefix="peagle-context-") as folder,
    ):
        path = Path(folder) / "context.zip"
        zip_file(order.context, path)
        say(f"uploading the build context ({_kilobytes(path.stat().st_size)})")
        with images.recorded(aws, "Object", f"{bucket}/{key}"):
            aws.upload(path, bucket, key, {}, lambda count: None)
    return bucket, key


def _kilobytes(size: int) -> str:
    return f"{size / 1e3:,.0f} kB" if size < _MB else f"{size / _MB:,.1f} MB"


def _project(name: str, role: str, source: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": "Builds images of peagle-toolkit",
        "source": {"type": "S3", "location": source, "buildspec": json.dumps(BUILDSPEC)},
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


def _start(project: str, source: str, variables: list[dict[str, str]]) -> dict[str, Any]:
    """StartBuild's parameters. All that matters is said again: the project may be an older one."""
    return {
        "projectName": project,
        "sourceTypeOverride": "S3",
        "sourceLocationOverride": source,
        "buildspecOverride": json.dumps(BUILDSPEC),
        "environmentTypeOverride": "LINUX_CONTAINER",
        "imageOverride": BUILD_IMAGE,
        "computeTypeOverride": COMPUTE,
        "privilegedModeOverride": True,
        "timeoutInMinutesOverride": LIMIT_MINUTES,
        "environmentVariablesOverride": variables,
    }


def _run(aws: Aws, asked: dict[str, Any], say: Say, clock: Clock) -> None:
    """Start the build and wait for its end; an interrupt ends it there too, for it costs."""
    with images.recorded(aws, "LogGroup", f"{LOG_GROUPS}{asked['projectName']}"):
        build_id = str(aws.call("codebuild", "start_build", **asked)["build"]["id"])
    try:
        _wait(aws, build_id, say, clock)
    except KeyboardInterrupt:
        _stop(aws, build_id, say)
        raise


def _stop(aws: Aws, build_id: str, say: Say) -> None:
    try:
        aws.call("codebuild", "stop_build", id=build_id)
        say(f"stopped the build {build_id}")
    except CloudError:
        say(f"it goes on: aws codebuild stop-build --id {build_id} --region {aws.region}")


def _create_project(aws: Aws, wanted: dict[str, Any], clock: Clock) -> None:
    """IAM takes some seconds until others see a new role."""
    for left in range(_ROLE_TRIES, 0, -1):
        try:
            aws.call("codebuild", "create_project", **wanted)
            return
        except AlreadyExists:
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
