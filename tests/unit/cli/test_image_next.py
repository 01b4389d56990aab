"""What `peagle image` asks for before it builds, and what it says comes next."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.cli import image as image_commands
from peagle.errors import CloudError
from peagle.images.docker import unchecked_image
from peagle.options import Overrides
from peagle.session import Session
from tests.support import Peagle, command_line
from tests.unit.images.conftest import LABELS, FakeDocker, docker
from tests.unit.rendering.plans import plan_of

__all__ = ["docker"]


def test_pushing_to_the_sandbox_is_refused_before_anything_is_built(
    peagle: Peagle, docker: FakeDocker
) -> None:
    docker.answers("version", out="20.10")
    done = peagle("image", "build", "tiny", "--base", "base:1", "--push", "--sandbox")
    assert done.returncode == 3
    assert "peagle image push NAME --registry HOST" in done.stderr
    assert not [one for one in docker.calls if one["argv"][0] != "version"]


def test_without_credentials_nothing_is_built_to_be_pushed(
    peagle: Peagle, docker: FakeDocker, tmp_path: Path
) -> None:
    docker.answers("version", out="20.10")
    without_session = {
        name: value for name, value in os.environ.items() if not name.startswith("AWS_")
    }
    nowhere = str(tmp_path / "nothing")
    without_session |= {"AWS_CONFIG_FILE": nowhere, "AWS_SHARED_CREDENTIALS_FILE": nowhere,
               "AWS_EC2_METADATA_DISABLED": "true"}  # fmt: skip
    done = peagle("image", "build", "tiny", "--base", "base:1", "--push", env=without_session)
    assert done.returncode != 0
    assert "no AWS credentials" in done.stderr
    assert not [one for one in docker.calls if one["argv"][0] != "version"]


def test_failed_push_names_the_built_image(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*given: object) -> str:
        raise CloudError("no", "repeat it")

    monkeypatch.setattr(image_commands, "_push", refused)
    typed = command_line("image", "build", "tiny", "--push", "--profile", "work")
    with typed, pytest.raises(CloudError):
        image_commands.push_built(unchecked_image("mine:1"), "eu-west-1", Session(profile="work"))
    reported = capsys.readouterr().err
    assert "mine:1 is built" in reported
    assert "peagle image push mine:1 --region eu-west-1 --profile work" in reported


@pytest.mark.parametrize(
    ("runtime", "session", "command"),
    [
        ("cpu", Session(), "peagle local up peagle/tiny+p-eagle --engine docker --image mine:1"),
        ("gpu", Session(), "peagle image push mine:1"),
        ("gpu", Session(sandbox=True), "peagle image push mine:1 --registry HOST"),
    ],
)
def test_build_shows_the_next_command(runtime: str, session: Session, command: str) -> None:
    built = replace(unchecked_image("mine:1"), labels={**LABELS, "peagle.runtime": runtime})
    assert image_commands.next_command(plan_of("uploaded"), built, session) == command


def test_the_next_command_keeps_what_the_user_set() -> None:
    built = replace(unchecked_image("mine:1"), labels={**LABELS, "peagle.runtime": "cpu"})
    own = Overrides(settings={"seed": "7"}, environment={"A": "b"}, startup_timeout=900)
    plan = plan_of("uploaded").model_copy(update={"overrides": own})

    command = image_commands.next_command(plan, built, Session())

    assert "--set seed=7 --env A=b --engine docker" in command


@pytest.mark.thorough
def test_no_deploy_command_for_an_image_outside_ecr(peagle: Peagle, docker: FakeDocker) -> None:
    docker.answers("version", out="20.10")
    docker.has_image("peagle-tiny:1")
    docker.answers("tag")
    docker.answers("push")
    push = ("image", "push", "peagle-tiny:1", "--registry", "localhost:5999")
    done = peagle(*push)
    assert done.returncode == 0, done.stderr
    assert "SageMaker pulls images from ECR only" in done.stderr
    assert "peagle deploy" not in done.stderr
    assert json.loads(peagle(*push, "--json").stdout)["next"] is None
