"""What goes wrong while an image is built or pushed: one line, a way out, and nothing left."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws

from peagle.aws import ecr
from peagle.aws import images as codebuild
from peagle.aws.client import Keys, connect
from peagle.cli.context import command_text
from peagle.errors import UserError
from peagle.images import Docker
from peagle.images.build import Login, logged_in, member_of
from peagle.render.requests import deploy_arguments
from tests.support import Peagle, command_line, raises_code
from tests.unit.images.conftest import FakeDocker, docker

__all__ = ["docker"]

BASE = "debian:bookworm-slim"
BUILD = ("image", "build", "gpt-oss-20b", "--base", BASE)
NO_ENGINE = (
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
    "running?"
)
FULL = "failed to register layer: write /opt/peagle/peagle_serve: no space left on device"
DENIED = "denied: requested access to the resource is denied"


@pytest.fixture
def place(tmp_path: Path, own_home: Path) -> Iterator[dict[str, str]]:
    """A home and a temporary folder of their own, which must be empty in the end, apart from the
    cached hashes of the weights that were planned."""
    folders = {"PEAGLE_HOME": tmp_path / "home", "TMPDIR": tmp_path / "tmp"}
    for folder in folders.values():
        folder.mkdir()
    yield {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    left = [path for folder in folders.values() for path in folder.rglob("*") if path.is_file()]
    assert [path for path in left if path != folders["PEAGLE_HOME"] / "contents.json"] == []


def _only_error(done: subprocess.CompletedProcess[str]) -> str:
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return errors[0]


@pytest.mark.parametrize(
    "words",
    [
        BUILD,
        ("image", "build", "tiny", "--runtime", "cpu"),
        ("image", "push", "peagle-tiny:1"),
        ("local", "up", "tiny", "--engine", "docker"),
        ("local", "up", "tiny", "--engine", "docker", "--build"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_stopped_docker_is_an_error_with_the_alternative(
    peagle: Peagle, docker: FakeDocker, place: dict[str, str], words: tuple[str, ...]
) -> None:
    docker.answers(code=1, err=NO_ENGINE)

    done = peagle(*words, env=place)

    assert done.returncode == 2
    assert "the Docker daemon does not respond" in _only_error(done)
    assert "local engines also run without it (--engine process)" in done.stderr


@pytest.mark.thorough
def test_full_disk_while_building_is_an_error_and_leaves_no_image(
    peagle: Peagle, docker: FakeDocker, place: dict[str, str]
) -> None:
    docker.answers("version", out="28.2")
    docker.answers("build", code=1, err=FULL)

    done = peagle(*BUILD, env=place)

    assert done.returncode == 2
    assert "the disk is full: building peagle-gpt-oss-20b:" in _only_error(done)
    assert "docker system prune" in done.stderr
    calls = [one["argv"] for one in docker.calls]
    assert next(argv for argv in calls if argv[0] == "build")[1] == "--force-rm"
    assert not [argv for argv in calls if argv[0] in ("tag", "push")]


@pytest.mark.thorough
def test_refused_push_is_an_error(
    peagle: Peagle, docker: FakeDocker, place: dict[str, str]
) -> None:
    docker.answers("version", out="28.2")
    docker.has_image("peagle-tiny:1")
    docker.answers("tag")
    docker.answers("push", code=1, err=DENIED)

    done = peagle("image", "push", "peagle-tiny:1", "--registry", "reg.example.com", env=place)

    assert done.returncode == 4
    error = _only_error(done)
    assert "pushing reg.example.com/peagle-tiny:1: denied" in error
    assert "log in to the registry" in error


@pytest.mark.thorough
def test_refused_base_image_is_an_error(
    peagle: Peagle, docker: FakeDocker, place: dict[str, str]
) -> None:
    docker.answers("version", out="28.2")
    docker.answers(
        "build", code=1, err=f"pull {DENIED} for private/base, repository does not exist"
    )

    done = peagle(*BUILD, env=place)

    assert done.returncode == 4
    assert "log in to the registry" in _only_error(done)


def test_full_disk_before_codebuild_is_an_error_and_nothing_is_sent(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()

    def full(members: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(codebuild, "zip_file", full)
    order = codebuild.BuildRequest("peagle-x", "1", "", [member_of("Dockerfile", b"FROM a")], "d")
    with mock_aws():
        aws = connect("us-east-1", keys=Keys("testing", "testing"))
        with raises_code("disk-full", UserError) as raised:
            codebuild.build_remotely(aws, order, print)

        assert "TMPDIR" in raised.value.fix
        assert not [made for made in ecr.image_resources(aws) if made.kind in ("Object", "Project")]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_full_disk_at_docker_login_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def full(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)

    login = Login("reg.example.com", "AWS", "s3cret")
    with raises_code("disk-full", UserError) as raised, logged_in(Docker(), [login]):
        pass

    assert "s3cret" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("pair", "baked", "region", "command"),
    [
        (["tiny"], False, "us-east-1", "peagle deploy tiny --image A --sandbox"),
        (["tiny"], True, "us-east-1", "peagle deploy tiny --image A --baked-weights --sandbox"),
        (
            ["a/b", "--drafter", "my head"], True, "eu-west-1",
            "peagle deploy a/b --drafter 'my head' --image A --baked-weights --region eu-west-1 "
            "--sandbox",
        ),
    ],
)  # fmt: skip
def test_what_was_pushed_comes_with_the_command_that_deploys_it(
    pair: list[str], baked: bool, region: str, command: str
) -> None:
    address = f"123456789012.dkr.ecr.{region}.amazonaws.com/peagle-tiny:1"
    with command_line("image", "push", "peagle-tiny:1", "--sandbox"):
        words = deploy_arguments(pair, address, baked, region)
        assert words is not None
        assert command_text(words) == command.replace("--image A", f"--image {address}")
