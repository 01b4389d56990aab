"""The ``docker`` command as this program uses it: argv lists in, text or an error out.

The command and not a library: it brings no dependency, finds the engine as the user has set it up
(context, DOCKER_HOST, rootless, a remote one), and people can type what it did.

What the Docker of this machine can do beside building and running.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peagle.errors import CloudError, DockerMissing, EngineError, NotFound, PeagleError, UserError

DOCKER = "docker"
WITHOUT_DOCKER = "install and start Docker, or do without: the process engine needs none"

Line = Callable[[str], object]

_BUILD_SETTINGS = {
    "BUILDKIT_PROGRESS": "plain",
    # SageMaker takes an image manifest, and no index with an attestation beside it.
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    "SOURCE_DATE_EPOCH": "0",
}
_LOOK_SECONDS = 60
_KEPT_LINES, _TOLD_LINES, _TOLD_CHARACTERS = 40, 3, 200

_ADVICE = re.compile(r"DEPRECATED: The legacy builder is deprecated")
_USAGE = re.compile(r"(Run|See) '[^']+ --help'|Usage:")
"""What follows an error, and says nothing of it."""

_NOT_RUNNING = re.compile(
    r"Cannot connect to the Docker daemon|error during connect|Is the docker daemon running"
    r"|permission denied while trying to connect"
)
_DISK_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_DENIED = re.compile(
    r"denied|unauthorized|no basic auth credentials|authentication required|403 Forbidden"
    r"|authorization token has expired",
    re.IGNORECASE,
)
_IMMUTABLE = re.compile(r"tag .*(is|are) immutable|ImageTagAlreadyExists", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"no such host|connection refused|i/o timeout|TLS handshake|EOF$|server gave HTTP response"
)
_NO_IMAGE = re.compile(
    r"No such (image|object|container|volume)|manifest unknown|not found|repository does not"
)
_TAKEN = re.compile(r"port is already allocated|address already in use")
_NO_GPU = re.compile(r"could not select device driver|nvidia-container-cli")


@dataclass(frozen=True)
class Docker:
    """The engine that the ``docker`` command reaches. ``environment`` is added to the command's."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise DockerMissing unless an engine answers."""
        self.run("version", "--format", "{{.Server.Version}}", doing="asking for its version")

    def run(self, *arguments: str, doing: str) -> str:
        """What ``docker ARGUMENTS`` printed. ``doing`` is for the error, in an -ing form."""
        try:
            done = subprocess.run(
                self.argv(*arguments),
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_LOOK_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{doing}: Docker does not answer", "restart Docker") from None
        if done.returncode:
            raise refusal(doing, done.stderr.splitlines() or done.stdout.splitlines())
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        """``docker KIND inspect NAME``; ``None`` when there is no such image or container."""
        try:
            printed = self.run(kind, "inspect", name, doing=f"looking at {name}")
        except NotFound:
            return None
        found: dict[str, Any] = json.loads(printed)[0]
        return found

    def stream(
        self,
        *arguments: str,
        doing: str,
        given: Iterable[bytes] = (),
        each_line: Line = lambda line: None,
    ) -> None:
        """Run ``docker ARGUMENTS`` with ``given`` as its input, telling each line as it comes.

        Raises as ``run`` does, and what went wrong with the input; an interrupt ends the command.
        """
        last: list[str] = []
        with subprocess.Popen(
            self.argv(*arguments),
            env={**self.variables(), **_BUILD_SETTINGS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as program:
            feeder = _Feeder(program, given)
            try:
                for line in _without_advice(program.stdout or ()):
                    last = [*last[-_KEPT_LINES:], line]
                    each_line(line)
            except BaseException:
                program.terminate()
                raise
            finally:
                # The program has closed its output or was ended, so its input ends as well.
                feeder.join()
        # First of all: what went wrong with the input is the cause of what Docker made of it.
        feeder.check()
        if program.returncode:
            raise refusal(doing, last)

    def argv(self, *arguments: str) -> list[str]:
        """The whole argv. Raises DockerMissing when this machine has no ``docker``."""
        found = shutil.which(DOCKER)
        if found is None:
            raise DockerMissing("there is no docker command on this machine", WITHOUT_DOCKER)
        return [found, *arguments]

    def variables(self) -> dict[str, str]:
        """The environment of the command."""
        return {**os.environ, **self.environment}


class _Feeder(threading.Thread):
    """Writes a program's input while its output is read; keeps what went wrong."""

    def __init__(self, program: subprocess.Popen[bytes], given: Iterable[bytes]) -> None:
        super().__init__(name="docker input", daemon=True)
        self._program = program
        self._given = given
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        stream = self._program.stdin
        assert stream is not None
        try:
            for chunk in self._given:
                stream.write(chunk)
        except BrokenPipeError:
            pass  # The program ended first, and says why itself.
        except Exception as error:
            # Half a context must not become an image: the command is ended, not its input.
            self._error = error
            self._program.terminate()
        finally:
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def check(self) -> None:
        """Raise what went wrong, once it has ended."""
        if self._error:
            raise self._error


def _without_advice(output: Iterable[bytes]) -> Iterator[str]:
    """The lines, but for what Docker says of its own builder each time."""
    advice = False
    for raw in output:
        line = raw.decode("utf-8", errors="replace").rstrip()
        advice = bool(_ADVICE.match(line)) or (advice and line[:1] in ("", " "))
        if not advice:
            yield line


def refusal(doing: str, lines: Sequence[str]) -> PeagleError:
    """What Docker's last lines mean, as an error of ours."""
    said = _deciding(lines)
    told = f"{doing}: {said}"
    if _NOT_RUNNING.search(said):
        return DockerMissing(f"no Docker engine answers: {said}", WITHOUT_DOCKER)
    if _DISK_FULL.search(said):
        return UserError(f"the disk is full: {told}", "make room: docker system prune")
    if _IMMUTABLE.search(said):
        return CloudError(told, "this tag is there already, with other content: give another --tag")
    if _NO_GPU.search(said):
        return UserError(told, "install the NVIDIA container toolkit, or leave out --gpus")
    if _TAKEN.search(said):
        return UserError(told, "give another --port, or leave it out for a free one")
    if _DENIED.search(said):
        return CloudError(told, "log in to that registry, and check that the repository is there")
    if _NO_IMAGE.search(said):
        return NotFound(told, "see `docker images`, and the image's spelling")
    if _UNREACHABLE.search(said):
        return CloudError(told, "check the registry's name and the network")
    return EngineError(f"{doing}: {_last_words(lines)}", "that is what Docker said last: mend it")


def _deciding(lines: Sequence[str]) -> str:
    """The last line that names an error, else the last one."""
    told = _telling(lines)
    errors = [line for line in told if re.search(r"error|denied|cannot|no such|no space|invalid",
                                                 line, re.IGNORECASE)]  # fmt: skip
    return _plain((errors or told or ["no word"])[-1])


def _last_words(lines: Sequence[str]) -> str:
    """The deciding line among the last ones: what Docker says is rewritten while it is shown."""
    told, deciding = [_plain(line) for line in _telling(lines)], _deciding(lines)
    last = told[-_TOLD_LINES:]
    chosen = last if deciding in last else [deciding, *last[1:]]
    return " | ".join(line[:_TOLD_CHARACTERS] for line in chosen) or deciding


def _telling(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and not _USAGE.match(line.strip())]


def _plain(line: str) -> str:
    return re.sub(r"^(docker: |ERROR: |Error response from daemon: )+", "", line)


_NVIDIA = "nvidia"


@dataclass(frozen=True)
class Abilities:
    """``version`` of the engine, versions of the command's ``plugins`` (buildx, compose), and
    whether containers get ``gpus``."""

    version: str
    plugins: Mapping[str, str]
    gpus: bool


def abilities(docker: Docker) -> Abilities:
    """What `docker info` says. Raises DockerMissing when no engine answers."""
    docker.check()
    try:
        said: dict[str, Any] = json.loads(
            docker.run("info", "--format", "{{json .}}", doing="asking what it can do")
        )
        plugins = {one["Name"]: one.get("Version", "") for one in _listed(said, "Plugins")}
        devices = [one.get("ID", "") for one in said.get("DiscoveredDevices") or ()]
        gpus = _NVIDIA in (said.get("Runtimes") or {}) or any(_NVIDIA in one for one in devices)
        return Abilities(str(said.get("ServerVersion", "")), plugins, gpus)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError("docker info says nothing readable", "update Docker") from error


def compose_command(docker: Docker) -> str:
    """How Compose is called on this machine: Docker's plugin, or Debian's program of its own. As
    the plugin is called where neither is there."""
    program, plugin = "docker-compose", f"{DOCKER} compose"
    try:
        docker.run("compose", "version", doing="asking for Compose")
    except PeagleError:
        return program if shutil.which(program) else plugin
    return plugin


def _listed(said: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    return (said.get("ClientInfo") or {}).get(key) or []
