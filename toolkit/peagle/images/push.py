"""Push an image to a registry without writing credentials to disk.

``docker login`` stores them in a file. Instead, a credential helper gives Docker the credentials
from the environment of this one command.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peagle.errors import UserError
from peagle.images.context import digests_of, explain_full_disk
from peagle.images.docker import Docker, Progress
from peagle.render.image_names import has_host, without_tag

_HELPER = "peagle"
_VARIABLE = "PEAGLE_REGISTRY_LOGINS"
_KEPT = ("contexts", "cli-plugins", "buildx")
"""The parts of the user's Docker configuration that a command needs: the engine's address and the
builder. The user's own logins are not copied."""

_PROGRAM = """\
import json, os, sys
logins = json.loads(os.environ.get("{variable}", "{{}}"))
if sys.argv[1:] == ["list"]:
    print(json.dumps({{host: user for host, (user, _) in logins.items()}}))
elif sys.argv[1:] == ["get"]:
    host = sys.stdin.read().strip()
    if host not in logins:
        sys.exit(print("credentials not found in native keychain") or 1)
    print(json.dumps({{"ServerURL": host, "Username": logins[host][0], "Secret": logins[host][1]}}))
"""


@dataclass(frozen=True)
class Login:
    """Credentials for the registry ``host``."""

    host: str
    user: str
    password: str = field(repr=False)


@contextlib.contextmanager
def logged_in(docker: Docker, logins: Sequence[Login]) -> Iterator[Docker]:
    """A Docker engine with these logins instead of the user's; without logins, ``docker``."""
    if not logins:
        yield docker
        return
    with tempfile.TemporaryDirectory(prefix="peagle-docker-") as name:
        folder = Path(name)
        with explain_full_disk("Docker's configuration for one command"):
            _configure(folder, [login.host for login in logins])
        known = {login.host: (login.user, login.password) for login in logins}
        path = os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", os.defpath)))
        yield Docker(
            {**docker.environment, "DOCKER_CONFIG": str(folder), "PATH": path,
             _VARIABLE: json.dumps(known)}
        )  # fmt: skip


def push(
    docker: Docker,
    name: str,
    address: str,
    logins: Sequence[Login] = (),
    progress: Progress = lambda line: None,
) -> str:
    """Push the image ``name`` as ``address``; returns the address with its digest.

    Raises CloudError when the registry rejects the image or the tag exists, and as ``Docker.run``.
    """
    doing = f"pushing {address}"
    repository = repository_part(address)
    docker.run("tag", name, address, doing=doing)
    with logged_in(docker, logins) as engine:
        engine.stream("push", address, doing=doing, each_line=progress)
    digests = digests_of(docker.inspect("image", address) or {}, repository)
    return f"{repository}@{digests[-1]}" if digests else address


def repository_part(address: str) -> str:
    """``host:5000/name`` of ``host:5000/name:tag``. Raises UserError without a registry's host."""
    if not has_host(address):
        raise UserError(
            f"{address!r} has no registry", "use registry.example.com/name:tag", "no-registry"
        )
    return without_tag(address)


def _configure(folder: Path, hosts: Sequence[str]) -> None:
    """A Docker configuration with names of registries and without secrets."""
    own = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    for kept in _KEPT:
        if (own / kept).is_dir():
            (folder / kept).symlink_to(own / kept)
    document: dict[str, object] = {"credHelpers": dict.fromkeys(hosts, _HELPER)}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((own / "config.json").read_text(encoding="utf-8"))
        document["currentContext"] = str(found["currentContext"])
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    helper = folder / "bin" / f"docker-credential-{_HELPER}"
    helper.parent.mkdir()
    source = folder / "helper.py"
    source.write_text(_PROGRAM.format(variable=_VARIABLE), encoding="utf-8")
    command = shlex.join([sys.executable, "-I", str(source)])
    helper.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    helper.chmod(0o700)
