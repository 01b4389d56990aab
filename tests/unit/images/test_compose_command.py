"""The name of Compose on this machine."""

from __future__ import annotations

import pytest

from peagle.images.docker import compose_command
from tests.unit.images.conftest import FakeDocker, docker

__all__ = ["docker"]


@pytest.mark.parametrize(
    ("plugin", "program", "called"),
    [(True, True, "docker compose"), (True, False, "docker compose"),
     (False, True, "docker-compose"), (False, False, "docker compose")],
    ids=["both", "plugin", "Debian's program", "none"],
)  # fmt: skip
def test_compose_is_called_by_its_name_on_this_machine(
    docker: FakeDocker, monkeypatch: pytest.MonkeyPatch, plugin: bool, program: bool, called: str
) -> None:
    output = {} if plugin else {"code": 1, "err": "docker: 'compose' is not a docker command."}
    docker.answers("compose", "version", **output)  # type: ignore[arg-type]
    monkeypatch.setenv("PATH", str(docker.folder))
    if program:
        (docker.folder / "docker-compose").touch(mode=0o755)

    assert compose_command() == called
