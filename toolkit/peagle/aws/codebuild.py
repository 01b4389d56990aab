"""CodeBuild: build and push an image on AWS, without Docker or disk space on this machine."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.aws import ecr, s3
from peagle.aws.build_role import build_log_group, ensure_build_role
from peagle.aws.client import Aws, Clock
from peagle.aws.errors import AlreadyExists, Missing
from peagle.aws.image_records import record_resource
from peagle.aws.runtime import clean
from peagle.errors import CloudError
from peagle.images.context import Member, explain_full_disk
from peagle.images.docker import Progress
from peagle.planning.company import NO_COMPANY, Company, prefixed
from peagle.text import format_size

PREFIX = "peagle-images/"
"""Prefix of the build contexts in the bucket."""

BUILD_IMAGE = "aws/codebuild/standard:7.0"
COMPUTE = "BUILD_GENERAL1_LARGE"
"""The smallest with enough disk for an image of more than 10 GB (128 GB, 8 vCPUs)."""

_LIMIT_MINUTES = 120
_POLL_SECONDS = 5.0
_ROLE_ATTEMPTS, _ROLE_SECONDS = 12, 5.0
_EARLIEST = (1980, 1, 1, 0, 0, 0)
_MAX_ROLE_NAME = 64

BUILDSPEC = {
    "version": 0.2,
    # SageMaker accepts an image manifest, and no index with attestations.
    "env": {"variables": {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}},
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


@dataclass(frozen=True)
class BuildRequest:
    """``context`` is built FROM an image of ``base_registry`` ("" for one that needs no login) and
    pushed as ``repository:tag``; ``digest`` is the context's. ``company`` is about what the build
    creates in the account."""

    repository: str
    tag: str
    base_registry: str
    context: Sequence[Member]
    digest: str
    company: Company = NO_COMPANY


@dataclass(frozen=True)
class RemoteBuild:
    """The address of a built image, and its digest once ECR reports it."""

    address: str
    digest: str | None


def build(aws: Aws, order: BuildRequest, say: Progress, clock: Clock | None = None) -> RemoteBuild:
    """Build and push the image; ``say`` receives the log line by line.

    Every step may be repeated. An existing image of that tag is not built again, because tags are
    immutable. An interrupt stops the build. Raises CloudError with the last line of the log.
    """
    clock = clock or Clock()
    uri = ecr.ensure_repository(aws, order.repository, order.company.tags)
    address = f"{uri}:{order.tag}"
    existing = ecr.image_digest(aws, order.repository, order.tag)
    if existing:
        say(f"{address} exists already, and tags are immutable")
        return RemoteBuild(address, existing)
    bucket, key = _upload(aws, order, say)
    project = project_name(order.repository)
    role = ensure_build_role(
        aws,
        _role_name(prefixed(project, order.company.name_prefix), aws.region),
        repository=order.repository,
        context=f"{bucket}/{PREFIX}",
        project=project,
        company=order.company,
    )
    registry = uri.partition("/")[0]
    variables = {
        "ADDRESS": address,
        "REGISTRY": registry,
        "BASE_REGISTRY": order.base_registry or registry,
    }
    record_resource(aws, "Project", project)
    _create_project(aws, _project(project, role, f"{bucket}/{key}", order.company), clock)
    say(f"CodeBuild project {project}: building {address}")
    _run(aws, _start_request(project, f"{bucket}/{key}", variables), say, clock)
    return RemoteBuild(address, ecr.image_digest(aws, order.repository, order.tag))


def project_name(repository: str) -> str:
    """The project of a repository. CodeBuild allows fewer characters: a hash then keeps names
    distinct."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", repository)
    return plain if plain == repository else f"{plain}-{_short_hash(repository)}"


def _role_name(project: str, region: str) -> str:
    name = f"{project}-{region}"
    if len(name) <= _MAX_ROLE_NAME:
        return name
    return f"{name[: _MAX_ROLE_NAME - 9]}-{_short_hash(name)}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def zip_file(members: Iterable[Member], path: Path) -> None:
    """Write the context as CodeBuild expects it; equal members give equal bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        for member in sorted(members, key=lambda one: one.path):
            info = zipfile.ZipInfo(member.path, _EARLIEST)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as stream:
                for chunk in member.chunks():
                    stream.write(chunk)


def _upload(aws: Aws, order: BuildRequest, say: Progress) -> tuple[str, str]:
    """Upload the context; its bucket and key."""
    bucket, key = s3.default_bucket(aws.account, aws.region), f"{PREFIX}{order.digest}.zip"
    if not s3.bucket_exists(aws, bucket):
        record_resource(aws, "Bucket", bucket)
        s3.create_bucket(aws, bucket, order.company.tag_list)
    size = sum(member.size for member in order.context)
    with (
        explain_full_disk(f"the build context of {format_size(size)}"),
        tempfile.TemporaryDirectory(prefix="peagle-context-") as folder,
    ):
        path = Path(folder) / "context.zip"
        zip_file(order.context, path)
        say(f"uploading the build context ({format_size(path.stat().st_size)})")
        record_resource(aws, "Object", f"{bucket}/{key}")
        aws.upload(path, bucket, key, {}, lambda count: None, order.company.kms_key)
    return bucket, key


def _project(name: str, role: str, source: str, company: Company) -> dict[str, Any]:
    own = [{"key": key, "value": value} for key, value in sorted(company.tags.items())]
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
        "timeoutInMinutes": _LIMIT_MINUTES,
        "tags": [{"key": "peagle:toolkit", "value": "images"}, *own],
    }


def _start_request(project: str, source: str, variables: dict[str, str]) -> dict[str, Any]:
    """StartBuild's parameters. They override an existing project, which may be from an older
    version."""
    return {
        "projectName": project,
        "sourceTypeOverride": "S3",
        "sourceLocationOverride": source,
        "buildspecOverride": json.dumps(BUILDSPEC),
        "environmentTypeOverride": "LINUX_CONTAINER",
        "imageOverride": BUILD_IMAGE,
        "computeTypeOverride": COMPUTE,
        "privilegedModeOverride": True,
        "timeoutInMinutesOverride": _LIMIT_MINUTES,
        "environmentVariablesOverride": [
            {"name": name, "value": value, "type": "PLAINTEXT"} for name, value in variables.items()
        ],
    }


def _create_project(aws: Aws, project: dict[str, Any], clock: Clock) -> None:
    """A new role is visible to other services only after some seconds."""
    for attempt in range(1, _ROLE_ATTEMPTS + 1):
        try:
            aws.call("codebuild", "create_project", **project)
            return
        except AlreadyExists:
            return
        except CloudError as error:
            # CodeBuild reports every invalid input with one code, so AWS's text decides.
            if "AssumeRole" not in error.message or attempt == _ROLE_ATTEMPTS:
                raise
        clock.sleep(_ROLE_SECONDS)


def _run(aws: Aws, request: dict[str, Any], say: Progress, clock: Clock) -> None:
    """Start the build and wait for its end. An interrupt stops it, because it costs money."""
    record_resource(aws, "LogGroup", build_log_group(request["projectName"]))
    build_id = str(aws.call("codebuild", "start_build", **request)["build"]["id"])
    try:
        _wait(aws, build_id, say, clock)
    except KeyboardInterrupt:
        try:
            aws.call("codebuild", "stop_build", id=build_id)
            say(f"stopped the build {build_id}")
        except CloudError:
            command = f"aws codebuild stop-build --id {build_id} --region {aws.region}"
            say(f"the build is still running: {command}")
        raise


def _wait(aws: Aws, build_id: str, say: Progress, clock: Clock) -> None:
    token, last = None, ""
    while True:
        builds = aws.call("codebuild", "batch_get_builds", ids=[build_id])["builds"]
        if not builds:
            raise CloudError(
                f"CodeBuild no longer knows the build {build_id}",
                "start it again",
                code="resource-missing",
            )
        found = builds[0]
        lines, token = _read_log(aws, found.get("logs") or {}, token)
        for last in lines:
            say(last)
        status = found["buildStatus"]
        if status == "SUCCEEDED":
            return
        if status != "IN_PROGRESS":
            raise CloudError(
                f"the build failed ({status}) in {found.get('currentPhase')}"
                f"{f': {last}' if last else ''}",
                f"aws codebuild batch-get-builds --ids {build_id}",
                "build-failed",
            )
        clock.sleep(_POLL_SECONDS)


def _read_log(aws: Aws, place: dict[str, Any], token: str | None) -> tuple[list[str], str | None]:
    """The lines of the build's log after ``token``, and the token of its present end."""
    lines: list[str] = []
    group, stream = place.get("groupName"), place.get("streamName")
    while group and stream:
        after = {"nextToken": token} if token else {}
        try:
            page = aws.call("logs", "get_log_events", logGroupName=group, logStreamName=stream,
                            startFromHead=True, **after)  # fmt: skip
        except Missing:
            break
        lines += filter(None, (clean(str(event["message"])).rstrip() for event in page["events"]))
        if page.get("nextForwardToken") == token:
            break
        token = page.get("nextForwardToken")
    return lines, token
