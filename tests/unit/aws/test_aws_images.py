"""Repositories, roles and builds of images, against moto; pushed images against the plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from peagle.aws import ecr
from peagle.aws import images as codebuild
from peagle.aws.client import Aws, Clock
from peagle.aws.images import ensure_build_role
from peagle.errors import CloudError
from peagle.images.build import member_of
from peagle.planning.company import Company
from tests.support import raises_code
from tests.unit.aws.conftest import moto_connection

CONTEXT = [
    member_of("Dockerfile", b"FROM base\n"),
    member_of("peagle/peagle_serve/a.py", b"x = 1\n"),
]
ORDER = codebuild.BuildRequest("peagle-tiny", "v1", "1.dkr.ecr.example", CONTEXT, "d1")


class InstantClock(Clock):
    def sleep(self, seconds: float) -> None:
        pass


@pytest.fixture
def aws(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    with mock_aws():
        yield moto_connection()


def build(
    aws: Aws, order: codebuild.BuildRequest = ORDER
) -> tuple[codebuild.RemoteBuild, list[str]]:
    lines: list[str] = []
    return codebuild.build_remotely(aws, order, lines.append, InstantClock()), lines


def put_image(aws: Aws, repository: str) -> None:
    """An image with the tag v1."""
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"digest": "sha256:0", "size": 1, "mediaType": "x"},
                "layers": []}  # fmt: skip
    aws.call("ecr", "put_image", repositoryName=repository, imageTag="v1",
             imageManifest=json.dumps(manifest))  # fmt: skip


@pytest.mark.thorough
def test_a_new_repository_scans_images_and_has_immutable_tags_and_a_lifecycle_policy(
    aws: Aws,
) -> None:
    uri = ecr.ensure_repository(aws, "peagle-tiny")
    assert ecr.ensure_repository(aws, "peagle-tiny") == uri
    (found,) = aws.call("ecr", "describe_repositories")["repositories"]
    assert found["imageScanningConfiguration"] == {"scanOnPush": True}
    assert found["imageTagMutability"] == "IMMUTABLE"
    text = aws.call("ecr", "get_lifecycle_policy", repositoryName="peagle-tiny")
    (rule,) = json.loads(text["lifecyclePolicyText"])["rules"]
    assert rule["selection"]["tagStatus"] == "untagged"


def test_a_repository_of_another_owner_is_used_and_left_unchanged(aws: Aws) -> None:
    aws.call("ecr", "create_repository", repositoryName="peagle-tiny")
    ecr.ensure_repository(aws, "peagle-tiny")
    with pytest.raises(CloudError):
        aws.call("ecr", "get_lifecycle_policy", repositoryName="peagle-tiny")
    ecr.remove_image_resources(aws, print)
    assert aws.call("ecr", "describe_repositories")["repositories"]


def test_the_login_uses_the_token_of_ecr(aws: Aws) -> None:
    found = ecr.login(aws, "host.example.com")
    assert (found.host, found.user) == ("host.example.com", "AWS")
    assert found.password
    assert found.password not in repr(found)


@pytest.mark.thorough
def test_a_build_creates_its_resources_once(aws: Aws) -> None:
    built, lines = build(aws)
    assert built.address.endswith("/peagle-tiny:v1")
    assert any("uploading the build context" in line for line in lines)
    first = ecr.image_resources(aws)
    kinds = [made.kind for made in first]
    assert kinds == ["Project", "LogGroup", "Role", "Object", "Bucket", "Repository"]
    build(aws)
    assert ecr.image_resources(aws) == first
    (project,) = aws.call("codebuild", "batch_get_projects", names=["peagle-tiny"])["projects"]
    assert project["environment"]["privilegedMode"] is True
    assert json.loads(project["source"]["buildspec"]) == codebuild.BUILDSPEC


def test_an_existing_tag_is_not_built_again(aws: Aws) -> None:
    ecr.ensure_repository(aws, "peagle-tiny")
    put_image(aws, "peagle-tiny")
    built, lines = build(aws)
    assert built.digest is not None
    assert lines == [f"{built.address} exists already, and tags are immutable"]
    assert aws.call("codebuild", "list_projects")["projects"] == []


@pytest.mark.thorough
def test_destroy_removes_the_recorded_resources_only(aws: Aws) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="not-ours")
    build(aws)
    aws.call("logs", "create_log_group", logGroupName="/aws/codebuild/peagle-tiny")
    removed = ecr.remove_image_resources(aws, lambda line: None)
    assert len(removed) == 6
    assert ecr.image_resources(aws) == ()
    assert aws.call("ecr", "describe_repositories")["repositories"] == []
    assert aws.call("codebuild", "list_projects")["projects"] == []
    assert aws.call("iam", "list_roles")["Roles"] == []
    assert aws.call("logs", "describe_log_groups")["logGroups"] == []
    assert [one["Name"] for one in aws.call("s3", "list_buckets")["Buckets"]] == ["not-ours"]
    assert ecr.remove_image_resources(aws, lambda line: None) == ()


@pytest.mark.thorough
def test_resources_of_an_interrupted_build_are_recorded(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(codebuild, "ensure_build_role", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(aws)
    assert {made.kind for made in ecr.image_resources(aws)} == {"Repository", "Bucket", "Object"}
    ecr.remove_image_resources(aws, lambda line: None)


@pytest.mark.thorough
def test_the_build_role_may_write_one_repository_and_read_one_prefix(aws: Aws) -> None:
    ensure_build_role(aws, "builder", "peagle-tiny", "bucket/peagle-images/", "peagle-tiny")
    written = aws.call("iam", "get_role_policy", RoleName="builder", PolicyName="build-one-image")
    statements = written["PolicyDocument"]["Statement"]
    by_action = {action: one["Resource"] for one in statements for action in one["Action"]}
    account = aws.account
    assert by_action["ecr:PutImage"] == [f"arn:aws:ecr:us-east-1:{account}:repository/peagle-tiny"]
    assert by_action["s3:GetObject"] == ["arn:aws:s3:::bucket/peagle-images/*"]
    group = f"arn:aws:logs:us-east-1:{account}:log-group:/aws/codebuild/peagle-tiny"
    assert by_action["logs:PutLogEvents"] == [group, f"{group}:*"]
    everything = [action for action, resource in by_action.items() if resource == ["*"]]
    assert everything == ["ecr:GetAuthorizationToken"]
    assert not any("*" in action for action in by_action)


@pytest.mark.thorough
@pytest.mark.parametrize("answers", [True, False])
def test_an_interrupt_stops_the_build_or_prints_the_command(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    real = aws.call
    stopped: list[str] = []

    def call(service: str, operation: str, **more: Any) -> dict[str, Any]:
        if operation == "batch_get_builds":
            raise KeyboardInterrupt
        if operation == "stop_build":
            stopped.append(more["id"])
            if not answers:
                raise CloudError("no answer")
            return {}
        return real(service, operation, **more)

    monkeypatch.setattr(aws, "call", call)
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        codebuild.build_remotely(aws, ORDER, lines.append, InstantClock())
    assert len(stopped) == 1
    start = (
        "stopped the build "
        if answers
        else "the build is still running: aws codebuild stop-build --id "
    )
    assert lines[-1].startswith(f"{start}{stopped[0]}")


def test_the_digest_of_an_image_in_the_ecr_of_any_account(aws: Aws) -> None:
    uri = ecr.ensure_repository(aws, "base")
    put_image(aws, "base")
    digest = ecr.image_digest(aws, "base", "v1")
    assert digest is not None
    assert ecr.digest_by_address(aws, f"{uri}:v1") == digest
    assert ecr.digest_by_address(aws, f"{uri}:v2") is None
    assert ecr.digest_by_address(aws, f"{uri}@{digest}") is None
    assert ecr.digest_by_address(aws, "763104351884.dkr.ecr.us-east-1.amazonaws.com/vllm:1") is None
    assert ecr.digest_by_address(aws, "debian:bookworm") is None


@pytest.mark.thorough
def test_a_build_waits_until_a_new_role_is_visible(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = aws.call
    tries: list[int] = []

    def call(service: str, operation: str, **more: Any) -> dict[str, Any]:
        if operation == "create_project" and len(tries) < 2:
            tries.append(1)
            raise CloudError("CreateProject: not authorized to perform: sts:AssumeRole on role")
        return real(service, operation, **more)

    monkeypatch.setattr(aws, "call", call)
    build(aws)
    assert len(tries) == 2


@pytest.mark.thorough
def test_each_log_line_is_shown_once_and_the_last_is_in_the_error(
    aws: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = aws.call
    polls: list[int] = []
    place = {"groupName": "/aws/codebuild/peagle-tiny", "streamName": "s"}

    def call(service: str, operation: str, **more: Any) -> dict[str, Any]:
        if operation == "batch_get_builds":
            polls.append(1)
            status = "IN_PROGRESS" if len(polls) < 3 else "FAILED"
            one = {"buildStatus": status, "logs": place, "currentPhase": "BUILD"}
            return {"builds": [one]}
        return real(service, operation, **more)

    logs = boto3.client("logs", region_name="us-east-1")
    logs.create_log_group(logGroupName=place["groupName"])
    logs.create_log_stream(logGroupName=place["groupName"], logStreamName="s")
    now = 1_795_000_000_000
    logs.put_log_events(
        logGroupName=place["groupName"], logStreamName="s",
        logEvents=[{"timestamp": now, "message": "pulling\n"},
                   {"timestamp": now + 1, "message": "denied\n"}],
    )  # fmt: skip
    monkeypatch.setattr(aws, "call", call)
    lines: list[str] = []
    with raises_code("build-failed", CloudError) as caught:
        codebuild.build_remotely(aws, ORDER, lines.append, InstantClock())
    assert "denied" in caught.value.message
    assert lines[-2:] == ["pulling", "denied"]
    assert lines.count("pulling") == 1


BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"


def test_the_build_role_has_the_boundary_and_the_tags_of_a_company(aws: Aws) -> None:
    company = Company(permissions_boundary=BOUNDARY, tags={"team": "ml"})
    given = ("builder", "peagle-tiny", "bucket/peagle-images/", "peagle-tiny")

    def boundary() -> object:
        role = aws.call("iam", "get_role", RoleName="builder")["Role"]
        return role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn")

    ensure_build_role(aws, *given)
    assert boundary() is None
    ensure_build_role(aws, *given, company)
    assert boundary() == BOUNDARY
    aws.call("iam", "delete_role_policy", RoleName="builder", PolicyName="build-one-image")
    aws.call("iam", "delete_role", RoleName="builder")
    ensure_build_role(aws, *given, company)
    assert boundary() == BOUNDARY
    tags = aws.call("iam", "list_role_tags", RoleName="builder")["Tags"]
    assert {"Key": "team", "Value": "ml"} in tags


@pytest.mark.thorough
def test_a_build_names_its_role_and_tags_what_it_creates_as_a_company_prescribes(aws: Aws) -> None:
    company = Company(name_prefix="acme-", tags={"team": "ml"}, kms_key="alias/models")
    codebuild.build_remotely(
        aws, replace(ORDER, company=company), lambda line: None, InstantClock()
    )

    roles = [role["RoleName"] for role in aws.call("iam", "list_roles")["Roles"]]
    assert "acme-peagle-tiny-us-east-1" in roles
    (project,) = aws.call("codebuild", "batch_get_projects", names=["peagle-tiny"])["projects"]
    assert {"key": "team", "value": "ml"} in project["tags"]
    (repository,) = aws.call("ecr", "describe_repositories")["repositories"]
    tags = aws.call("ecr", "list_tags_for_resource", resourceArn=repository["repositoryArn"])
    assert {"Key": "team", "Value": "ml"} in tags["tags"]
