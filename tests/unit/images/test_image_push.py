"""Pushing: Docker gets the credentials, which are in no file and no argv."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from peagle.errors import UserError
from peagle.images import Docker, Login, push
from peagle.images.build import logged_in, repository_part
from tests.support import raises_code
from tests.unit.images.conftest import FakeDocker

LOGIN = Login("registry.example.com:5000", "AWS", "s3cret-token")


@pytest.mark.thorough
def test_the_credential_helper_gives_docker_the_credentials() -> None:
    with logged_in(Docker(), [LOGIN]) as engine:
        reply = subprocess.run(
            ["docker-credential-peagle", "get"], env=engine.variables(), input=LOGIN.host,
            capture_output=True, text=True, check=True, executable=_helper(engine),
        )  # fmt: skip
        assert json.loads(reply.stdout) == {
            "ServerURL": LOGIN.host, "Username": "AWS", "Secret": "s3cret-token",
        }  # fmt: skip
        other = subprocess.run(
            ["x", "get"], env=engine.variables(), input="elsewhere.example.com",
            capture_output=True, text=True, check=False, executable=_helper(engine),
        )  # fmt: skip
        assert "credentials not found" in other.stdout


def _helper(engine: Docker) -> str:
    return str(Path(engine.variables()["DOCKER_CONFIG"], "bin", "docker-credential-peagle"))


@pytest.mark.thorough
def test_no_file_and_no_argv_holds_the_secret(docker: FakeDocker) -> None:
    docker.has_image("there", RepoDigests=["registry.example.com:5000/a@sha256:1"])
    docker.answers("tag")
    docker.answers("push")
    with logged_in(Docker(), [LOGIN]) as engine:
        folder = Path(engine.variables()["DOCKER_CONFIG"])
        texts = [file.read_text() for file in folder.rglob("*") if file.is_file()]
        assert len(texts) == 3
        assert not any("s3cret" in text for text in texts)
    assert not folder.exists()
    assert "s3cret" not in repr(LOGIN)
    push(Docker(), "mine:1", "registry.example.com:5000/a:1", [LOGIN])
    (pushed,) = [one for one in docker.calls if one["argv"][0] == "push"]
    assert "s3cret" not in " ".join(pushed["argv"])
    assert json.loads(pushed["config"])["credHelpers"] == {LOGIN.host: "peagle"}


def test_the_users_engine_is_found_and_their_logins_are_not_copied(
    docker: FakeDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / "contexts").mkdir(parents=True)
    (own / "contexts" / "remote").write_text("")
    auths = {"auths": {"x": {"auth": "dXNlcjpwYXNz"}}, "currentContext": "remote"}
    (own / "config.json").write_text(json.dumps(auths))
    monkeypatch.setenv("DOCKER_CONFIG", str(own))
    with logged_in(Docker(), [LOGIN]) as engine:
        folder = Path(engine.variables()["DOCKER_CONFIG"])
        assert (folder / "contexts" / "remote").exists()
        document = json.loads((folder / "config.json").read_text())
    assert document == {"credHelpers": {LOGIN.host: "peagle"}, "currentContext": "remote"}


def test_an_address_without_a_registry_is_refused() -> None:
    assert repository_part("localhost:5000/a/b:1") == "localhost:5000/a/b"
    assert repository_part("localhost/a") == "localhost/a"
    for address in ("name:1", "library/name:1"):
        with raises_code("no-registry", UserError):
            repository_part(address)
