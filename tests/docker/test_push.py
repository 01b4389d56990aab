"""`peagle image push` to a registry of this machine that wants a login: Debian's own."""

import base64
import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import pytest
import yaml

from peagle.engine.process import free_port
from peagle.errors import CloudError
from peagle.images.build import Login, make_member, push, write_tar
from peagle.images.docker import Docker
from peagle.render.image import LAYER_LIMIT_BYTES
from tests.docker.conftest import Build
from tests.support import Peagle, raises_code

pytestmark = [pytest.mark.docker, pytest.mark.sandbox]
REGISTRY = "docker-registry"
PASSWORD = "123456789012-auth-token"
"""What the sandbox's ECR gives as a token, for the user AWS."""
HTPASSWD = "AWS:$2y$05$abcdefghijklmnopqrstuu/4ofrUS75HrKu6f.iuRo0I/XlrmpqlC\n"


@pytest.fixture(scope="module")
def registry(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a registry."""
    program = shutil.which(REGISTRY)
    if program is None:
        pytest.skip(f"there is no {REGISTRY} (Debian: apt-get install {REGISTRY})")
    folder = tmp_path_factory.mktemp("registry")
    (folder / "htpasswd").write_text(HTPASSWD)
    port = free_port()
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
        "auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + 30
        while status(port) != http.HTTPStatus.OK:
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(30)


def status(port: int, path: str = "/v2/") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    key = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
    accept = "application/vnd.docker.distribution.manifest.v2+json"
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {key}", "Accept": accept})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@pytest.fixture
def small(docker: Docker) -> Iterator[str]:
    """An image with the labels of ours and without 2 GB below it."""
    name = "peagle-push-test:1"
    context = b'FROM scratch\nLABEL peagle.pair="a/b" peagle.runtime="cpu"\nCOPY Dockerfile /\n'
    docker.stream("build", "--tag", name, "-", doing="building", stdin=make_context(context))
    made = docker.inspect("image", name)
    assert made is not None
    yield name
    # By id: with every other name that pushing gave it.
    subprocess.run(docker.argv("rmi", "--force", made["Id"]), capture_output=True, check=False)


def make_context(dockerfile: bytes) -> Callable[[IO[bytes]], None]:
    return partial(write_tar, [make_member("Dockerfile", dockerfile)])


def test_push_makes_the_repository_logs_in_and_leaves_no_secret(
    registry: str, small: str, peagle: Peagle, tmp_path: Path
) -> None:
    settings = tmp_path / "docker-config"
    settings.mkdir()
    place = {**os.environ, "PEAGLE_HOME": str(tmp_path / "home"), "DOCKER_CONFIG": str(settings),
             "TMPDIR": str(tmp_path)}  # fmt: skip
    try:
        done = peagle("image", "push", small, "--sandbox", "--registry", registry, "--json",
                      env=place)  # fmt: skip
        assert done.returncode == 0, done.stderr
        address, _, digest = json.loads(done.stdout)["pushed"].partition("@")
        assert address == f"{registry}/peagle-push-test"
        port = int(registry.rpartition(":")[2])
        assert status(port, f"/v2/peagle-push-test/manifests/{digest}") == http.HTTPStatus.OK
        assert list(settings.iterdir()) == []
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(PASSWORD.encode() in path.read_bytes() for path in kept)
        removed = peagle("destroy", "--images", "--sandbox", "--yes", "--json", env=place)
        assert json.loads(removed.stdout) == {
            "removed": [{"type": "Repository", "name": "peagle-push-test"}]
        }
    finally:
        peagle("sandbox", "stop", env=place)


@pytest.fixture
def base(registry: str, docker: Docker) -> Iterator[str]:
    """A base image in the registry that this machine does not have."""
    name = f"{registry}/base:1"
    context = make_context(b"FROM scratch\nCOPY Dockerfile /\n")
    docker.stream("build", "--tag", name, "-", doing="building", stdin=context)
    push(docker, name, name, [Login(registry, "AWS", PASSWORD)])
    remove = docker.argv("rmi", "--force", name)
    subprocess.run(remove, capture_output=True, check=True)
    yield name
    subprocess.run(remove, capture_output=True, check=False)


def test_the_base_of_an_image_is_known_by_its_digest(
    registry: str, base: str, build: Build, tmp_path: Path
) -> None:
    key = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry: {"auth": key}}}))
    place = {**os.environ, "DOCKER_CONFIG": str(tmp_path)}
    made = build("gpt-oss-20b", "--base", base, env=place)
    digest = made["labels"]["org.opencontainers.image.base.digest"]
    port = int(registry.rpartition(":")[2])
    assert status(port, f"/v2/base/manifests/{digest}") == http.HTTPStatus.OK
    assert made["base"] == base
    assert 0 < made["layer_bytes"] < LAYER_LIMIT_BYTES
    assert build("gpt-oss-20b", "--base", f"{base}@{digest}", env=place)["name"] == made["name"]


def test_a_registry_that_refuses_is_reported(registry: str, small: str, docker: Docker) -> None:
    wrong = Login(registry, "AWS", "wrong")
    with raises_code("registry-denied", CloudError) as raised:
        push(docker, small, f"{registry}/peagle-push-test:1", [wrong])
    assert "log in" in raised.value.fix


def test_an_unreachable_registry_is_reported(small: str, docker: Docker) -> None:
    with raises_code("registry-unreachable", CloudError):
        push(docker, small, f"127.0.0.1:{free_port()}/x:1")
