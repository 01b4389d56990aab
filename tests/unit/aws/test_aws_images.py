"""Images on AWS: repositories, roles and builds against moto; pushed images against the plan."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from string import ascii_letters, digits
from typing import Any

import boto3
import pytest
from moto import mock_aws

from peagle.aws import ecr
from peagle.aws import images as codebuild
from peagle.aws.client import Aws, Clock
from peagle.aws.ecr import remove_image_resources
from peagle.aws.images import ImageRequest, build_image_on_aws, ensure_build_role
from peagle.catalog import load_catalog
from peagle.errors import CloudError, UserError
from peagle.images.build import make_member
from peagle.planning import Options, make_plan
from peagle.planning.company import Company
from tests.support import raises_code
from tests.unit.aws.conftest import moto_connection
from tests.unit.aws.world import World

NAME = "peagle-tiny"
DIGEST = "sha256:" + "a" * 64
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
CONTEXT = [
    make_member("Dockerfile", b"FROM base\n"),
    make_member("peagle/peagle_serve/a.py", b"x = 1\n"),
]
ORDER = codebuild.BuildRequest(NAME, "v1", "1.dkr.ecr.example", CONTEXT, "d1")
ROLE = ("builder", NAME, "bucket/peagle-images/", NAME)


class InstantClock(Clock):
    def sleep(self, seconds: float) -> None:
        pass


@pytest.fixture
def aws(own_home: Path) -> Iterator[Aws]:
    with mock_aws():
        yield moto_connection()


def build(
    aws: Aws, order: codebuild.BuildRequest = ORDER, lines: list[str] | None = None
) -> tuple[str, str | None]:
    printed = lines if lines is not None else []
    return codebuild.build_remotely(aws, order, printed.append, InstantClock())


def put_image(aws: Aws, repository: str) -> tuple[str, str]:
    """An image with the tag v1: its address, and its digest."""
    uri = ecr.ensure_repository(aws, repository)
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": {"digest": "sha256:0", "size": 1, "mediaType": "x"},
                "layers": []}  # fmt: skip
    aws.call("ecr", "put_image", repositoryName=repository, imageTag="v1",
             imageManifest=json.dumps(manifest))  # fmt: skip
    digest = ecr.digest_by_address(aws, f"{uri}:v1")
    assert digest is not None
    return f"{uri}:v1", digest


Answer = Callable[[str, dict[str, Any]], dict[str, Any] | None]


@pytest.fixture
def answer(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Let a function answer AWS's calls by operation; moto answers where it returns ``None``."""
    real = aws.call

    def install(of: Answer) -> None:
        def call(service: str, operation: str, **more: Any) -> dict[str, Any]:
            response = of(operation, more)
            return real(service, operation, **more) if response is None else response

        monkeypatch.setattr(aws, "call", call)

    return install


def test_a_repository_of_another_owner_is_used_and_left_unchanged(aws: Aws) -> None:
    aws.call("ecr", "create_repository", repositoryName=NAME)
    ecr.ensure_repository(aws, NAME)
    with pytest.raises(CloudError):
        aws.call("ecr", "get_lifecycle_policy", repositoryName=NAME)
    remove_image_resources(aws, print)
    assert aws.call("ecr", "describe_repositories")["repositories"]


@pytest.mark.thorough
def test_a_build_creates_its_resources_once_and_they_alone_are_removed(aws: Aws) -> None:
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="not-ours")
    lines: list[str] = []
    assert build(aws, lines=lines)[0].endswith(f"/{NAME}:v1")
    assert any("uploading the build context" in line for line in lines)
    recorded = ecr.image_resources(aws)
    kinds = [resource.kind for resource in recorded]
    assert kinds == ["Project", "LogGroup", "Role", "Object", "Bucket", "Repository"]
    build(aws)
    assert ecr.image_resources(aws) == recorded
    (project,) = aws.call("codebuild", "batch_get_projects", names=[NAME])["projects"]
    assert project["environment"]["privilegedMode"] is True
    assert json.loads(project["source"]["buildspec"]) == codebuild.BUILDSPEC
    aws.call("logs", "create_log_group", logGroupName=f"/aws/codebuild/{NAME}")
    assert remove_image_resources(aws, lines.append) == recorded
    assert ecr.image_resources(aws) == ()
    for service, operation, key in (
        ("ecr", "describe_repositories", "repositories"),
        ("codebuild", "list_projects", "projects"),
        ("iam", "list_roles", "Roles"),
        ("logs", "describe_log_groups", "logGroups"),
    ):
        assert aws.call(service, operation)[key] == []
    assert [bucket["Name"] for bucket in aws.call("s3", "list_buckets")["Buckets"]] == ["not-ours"]
    assert remove_image_resources(aws, lines.append) == ()


def test_an_existing_tag_is_not_built_again(aws: Aws) -> None:
    address, digest = put_image(aws, NAME)
    lines: list[str] = []
    assert build(aws, lines=lines) == (address, digest)
    assert lines == [f"{address} exists already, and tags are immutable"]
    assert aws.call("codebuild", "list_projects")["projects"] == []


@pytest.mark.thorough
def test_the_build_role_may_write_one_repository_and_read_one_prefix(aws: Aws) -> None:
    ensure_build_role(aws, *ROLE)
    written = aws.call("iam", "get_role_policy", RoleName="builder", PolicyName="build-one-image")
    statements = written["PolicyDocument"]["Statement"]
    by_action = {action: each["Resource"] for each in statements for action in each["Action"]}
    account = aws.account
    assert by_action["ecr:PutImage"] == [f"arn:aws:ecr:us-east-1:{account}:repository/{NAME}"]
    assert by_action["s3:GetObject"] == ["arn:aws:s3:::bucket/peagle-images/*"]
    group = f"arn:aws:logs:us-east-1:{account}:log-group:/aws/codebuild/{NAME}"
    assert by_action["logs:PutLogEvents"] == [group, f"{group}:*"]
    everything = [action for action, resource in by_action.items() if resource == ["*"]]
    assert everything == ["ecr:GetAuthorizationToken"]
    assert not any("*" in action for action in by_action)


def test_the_build_role_has_the_boundary_and_the_tags_of_a_company(aws: Aws) -> None:
    company = Company(permissions_boundary=BOUNDARY, tags={"team": "ml"})

    ensure_build_role(aws, *ROLE, company)
    role = aws.call("iam", "get_role", RoleName="builder")["Role"]
    assert role["PermissionsBoundary"]["PermissionsBoundaryArn"] == BOUNDARY
    tags = aws.call("iam", "list_role_tags", RoleName="builder")["Tags"]
    assert {"Key": "team", "Value": "ml"} in tags


@pytest.mark.parametrize(("letters", "is_whole"), [(47, True), (48, False)])
def test_name_of_the_role_has_64_characters_at_most(aws: Aws, letters: int, is_whole: bool) -> None:
    name = "peagle-" + letters * "x"
    build(aws, replace(ORDER, repository=name))
    (role,) = aws.call("iam", "list_roles")["Roles"]
    assert len(role["RoleName"]) == 64
    assert (role["RoleName"] == f"{name}-us-east-1") is is_whole


def test_two_repositories_have_two_projects() -> None:
    names = ("team/tiny", "team.tiny", "team-tiny", "team_tiny")
    projects = [codebuild.project_name(name) for name in names]
    assert len(set(projects)) == len(names)
    assert projects[2:] == ["team-tiny", "team_tiny"]
    assert all(set(project) <= set(ascii_letters + digits + "-_") for project in projects)


def test_a_build_has_its_own_context_and_variables(
    aws: Aws, answer: Callable[[Answer], None]
) -> None:
    started: list[dict[str, Any]] = []

    def of(operation: str, more: dict[str, Any]) -> None:
        if operation == "start_build":
            started.append(more)

    answer(of)
    build(aws)
    build(aws, replace(ORDER, tag="v2", digest="d2", base_registry=""))
    first, second = started
    assert first["sourceLocationOverride"].endswith("/peagle-images/d1.zip")
    assert second["sourceLocationOverride"].endswith("/peagle-images/d2.zip")
    variables = [
        {entry["name"]: entry["value"] for entry in request["environmentVariablesOverride"]}
        for request in started
    ]
    assert variables[0]["BASE_REGISTRY"] == "1.dkr.ecr.example"
    assert variables[1]["BASE_REGISTRY"] == variables[1]["REGISTRY"]
    assert variables[1]["ADDRESS"] == f"{variables[1]['REGISTRY']}/{NAME}:v2"


@pytest.mark.thorough
@pytest.mark.parametrize("stops", [True, False])
def test_an_interrupt_stops_the_build_and_prints_the_command(
    aws: Aws, answer: Callable[[Answer], None], stops: bool
) -> None:
    stopped: list[str] = []

    def of(operation: str, more: dict[str, Any]) -> dict[str, Any] | None:
        if operation == "batch_get_builds":
            raise KeyboardInterrupt
        if operation == "stop_build":
            stopped.append(more["id"])
            if not stops:
                raise CloudError("no answer")
            return {}
        return None

    answer(of)
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        build(aws, lines=lines)
    assert f"aws codebuild stop-build --id {stopped[0]} --region" in lines[-1]


@pytest.mark.thorough
def test_build_waits_until_new_role_is_visible(aws: Aws, answer: Callable[[Answer], None]) -> None:
    tries: list[str] = []

    def of(operation: str, more: dict[str, Any]) -> None:
        if operation == "create_project" and len(tries) < 2:
            tries.append(operation)
            raise CloudError("CreateProject: not authorized to perform: sts:AssumeRole on role")

    answer(of)
    build(aws)
    assert len(tries) == 2


@pytest.mark.thorough
def test_each_log_line_is_shown_once_and_the_last_is_in_the_error(
    aws: Aws, answer: Callable[[Answer], None]
) -> None:
    polls: list[str] = []
    group, stream = f"/aws/codebuild/{NAME}", "s"

    def of(operation: str, more: dict[str, Any]) -> dict[str, Any] | None:
        if operation != "batch_get_builds":
            return None
        polls.append(operation)
        status = "IN_PROGRESS" if len(polls) < 3 else "FAILED"
        place = {"groupName": group, "streamName": stream}
        return {"builds": [{"buildStatus": status, "logs": place, "currentPhase": "BUILD"}]}

    aws.call("logs", "create_log_group", logGroupName=group)
    aws.call("logs", "create_log_stream", logGroupName=group, logStreamName=stream)
    now = 1_795_000_000_000
    events = [{"timestamp": now, "message": "pulling\n"},
              {"timestamp": now + 1, "message": "denied\n"}]  # fmt: skip
    aws.call("logs", "put_log_events", logGroupName=group, logStreamName=stream, logEvents=events)
    answer(of)
    lines: list[str] = []
    with raises_code("build-failed", CloudError) as caught:
        build(aws, lines=lines)
    assert "denied" in caught.value.message
    assert lines[-2:] == ["pulling", "denied"]
    assert lines.count("pulling") == 1


@pytest.mark.thorough
def test_a_base_is_pinned_where_ecr_has_it(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[codebuild.BuildRequest] = []
    pushed: str | None = DIGEST
    catalog = load_catalog()
    plan = make_plan(Options(pair="gpt-oss-20b"), catalog)

    def take(aws: Aws, order: codebuild.BuildRequest, say: Any) -> tuple[str, str | None]:
        orders.append(order)
        return f"host/{order.repository}:{order.tag}", pushed

    def built(base: str, tag: str | None = None) -> tuple[str, str, list[str]]:
        """The image's address, its base, and what is printed meanwhile."""
        printed: list[str] = []
        request = ImageRequest(plan, catalog, "gpu", tag, base)
        address = build_image_on_aws(aws, request, printed.append)
        (dockerfile,) = (member for member in orders[-1].context if member.path == "Dockerfile")
        lines = dockerfile.open().read().decode().splitlines()
        (line,) = (line for line in lines if line.startswith("ARG BASE="))
        return address, line.removeprefix("ARG BASE="), printed

    monkeypatch.setattr(codebuild, "build_remotely", take)
    in_ecr, digest = put_image(aws, "base")
    assert built(in_ecr)[1:] == (f"{in_ecr}@{digest}", [])
    assert orders[0].base_registry == in_ecr.partition("/")[0]
    assert built("python:3.12")[1:] == ("python:3.12", [])
    elsewhere = "acme.example.com/vllm:1"
    _, base, (printed,) = built(elsewhere)
    assert base == elsewhere
    assert "without a pinned digest" in printed
    named = f"docker.io/acme/vllm@{DIGEST}"
    assert built(named, "mine:2")[0] == f"host/mine@{DIGEST}"
    pushed = None  # ECR does not list it yet
    assert built(named, "mine:2")[0] == "host/mine:2"
    assert (orders[-1].repository, orders[-1].tag) == ("mine", "2")


@pytest.mark.parametrize("content", ['{"a', '[{"name": 1}]'])
def test_a_damaged_record_is_an_error_with_its_path(world: World, content: str) -> None:
    path = ecr._file(world.aws)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    with raises_code("record-damaged", UserError) as raised:
        ecr.image_resources(world.aws)
    assert str(path.parent) in raised.value.message
    with raises_code("record-damaged", UserError):
        remove_image_resources(world.aws, print)
