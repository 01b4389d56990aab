"""Errors of Docker as errors for the user."""

from pathlib import Path
from typing import IO

import pytest

from peagle.errors import CloudError, DockerMissing, EngineError, NotFound, PeagleError, UserError
from peagle.images.docker import Docker
from tests.support import raises_code
from tests.unit.images.conftest import FakeDocker

ERRORS: list[tuple[str, type[PeagleError], str]] = [
    ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon "
     "running?", DockerMissing, "--engine process"),
    ("permission denied while trying to connect to the Docker daemon socket", DockerMissing,
     "--engine process"),
    ("Error response from daemon: write /layer: no space left on device", UserError,
     "docker system prune"),
    ("denied: User is not authorized to perform: ecr:InitiateLayerUpload", CloudError, "log in"),
    ("unauthorized: authentication required", CloudError, "log in"),
    ("tag invalid: The image tag 'v1' already exists in the 'x' repository and cannot be "
     "overwritten because the tag is immutable.", CloudError, "--tag"),
    ("Error response from daemon: manifest for x:1 not found: manifest unknown", NotFound,
     "docker images"),
    ("Get \"https://registry.invalid/v2/\": dial tcp: lookup registry.invalid: no such host",
     CloudError, "network"),
    ("docker: Error response from daemon: driver failed: Bind for 127.0.0.1:80 failed: port is "
     "already allocated.", UserError, "--port"),
    ('docker: Error response from daemon: could not select device driver "" with capabilities: '
     "[[gpu]].", UserError, "--gpus"),
    ("The command '/bin/sh -c false' returned a non-zero code: 1", EngineError, "Docker reports"),
]  # fmt: skip


@pytest.mark.parametrize(("output", "kind", "fix"), ERRORS)
def test_docker_errors_have_a_class_and_a_fix(
    docker: FakeDocker, output: str, kind: type[PeagleError], fix: str
) -> None:
    docker.answers(code=1, err=f"Sending build context to Docker daemon  2kB\n{output}")
    for call in (Docker().run, Docker().stream):
        with pytest.raises(kind) as raised:
            call("push", "x", doing="pushing x")
        assert fix in str(raised.value)
        assert "Error response from daemon" not in raised.value.message.split(": ")[0:2]


def test_without_docker_the_error_names_the_process_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DockerMissing) as raised:
        Docker().check()
    assert "--engine process" in raised.value.fix
    assert raised.value.exit_code == 2


def test_an_error_of_the_input_takes_precedence_over_dockers(docker: FakeDocker) -> None:
    def write(stream: IO[bytes]) -> None:
        stream.write(b"half")
        raise OSError("model.safetensors has changed")

    with pytest.raises(OSError, match="has changed"):
        Docker().stream("build", "-", doing="building", stdin=write)


def test_command_that_ends_early_reports_its_own_error(docker: FakeDocker, tmp_path: Path) -> None:
    (docker.folder / "docker").write_text("#!/bin/sh\necho 'no space left on device' >&2; exit 1\n")

    def write(stream: IO[bytes]) -> None:
        for _ in range(20):
            stream.write(b"x" * 10**6)

    with raises_code("disk-full", UserError):
        Docker().stream("build", "-", doing="building", stdin=write)
