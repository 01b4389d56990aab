"""The ``docker`` command: argv lists in, text or an error out.

The command instead of a library: it needs no dependency and uses the engine that the user has
configured (context, DOCKER_HOST, rootless, remote).
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

from peagle.errors import (
    CloudError,
    DockerMissing,
    EngineError,
    Fix,
    NotFound,
    PeagleError,
    UserError,
)

DOCKER = "docker"
WITHOUT_DOCKER = "install and start Docker; the process engine works without it"

Line = Callable[[str], object]

_BUILD_SETTINGS = {
    "BUILDKIT_PROGRESS": "plain",
    # SageMaker accepts an image manifest, and no index with attestations.
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    "SOURCE_DATE_EPOCH": "0",
}
_QUERY_SECONDS = 60
_KEPT_LINES, _SHOWN_LINES, _SHOWN_CHARACTERS = 40, 3, 200

_ADVICE = re.compile(r"DEPRECATED: The legacy builder is deprecated")
_USAGE = re.compile(r"(Run|See) '[^']+ --help'|Usage:")
"""Lines that follow an error and do not explain it."""

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
_TAG_EXISTS = re.compile(r"tag .*(is|are) immutable|ImageTagAlreadyExists", re.IGNORECASE)
_UNREACHABLE = re.compile(
    r"no such host|connection refused|i/o timeout|TLS handshake|EOF$|server gave HTTP response"
)
_NO_IMAGE = re.compile(
    r"No such (image|object|container|volume)|manifest unknown|not found|repository does not"
)
_PORT_IN_USE = re.compile(r"port is already allocated|address already in use")
_ERROR = re.compile(r"error|denied|cannot|no such|no space|invalid", re.IGNORECASE)
_NO_GPU = re.compile(r"could not select device driver|nvidia-container-cli")


@dataclass(frozen=True)
class Docker:
    """The engine that ``docker`` reaches. ``environment`` is added to the command's environment."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise DockerMissing unless an engine answers."""
        self.run("version", "--format", "{{.Server.Version}}", doing="querying its version")

    def run(self, *arguments: str, doing: str) -> str:
        """The output of ``docker ARGUMENTS``. ``doing`` (in -ing form) begins an error's message.

        Raises DockerMissing, NotFound, UserError, CloudError or EngineError.
        """
        try:
            done = subprocess.run(
                self.argv(*arguments),
                env=self.variables(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_QUERY_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise EngineError(f"{doing}: Docker does not answer", "restart Docker") from None
        if done.returncode:
            raise docker_error(doing, done.stderr.splitlines() or done.stdout.splitlines())
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        """``docker KIND inspect NAME``; ``None`` when there is no such image or container."""
        try:
            printed = self.run(kind, "inspect", name, doing=f"inspecting {name}")
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
        """Run ``docker ARGUMENTS`` with ``given`` as its input; pass each line of output on.

        Raises as ``run`` does, and errors of ``given``; an interrupt ends the command.
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
                # The program has closed its output or was terminated, so its input ends too.
                feeder.join()
        # Checked first: an error of the input causes the command to fail.
        feeder.check()
        if program.returncode:
            raise docker_error(doing, last)

    def argv(self, *arguments: str) -> list[str]:
        """The complete argv. Raises DockerMissing when this machine has no ``docker``."""
        found = shutil.which(DOCKER)
        if found is None:
            raise DockerMissing("there is no docker command on this machine", WITHOUT_DOCKER)
        return [found, *arguments]

    def variables(self) -> dict[str, str]:
        """The environment of the command."""
        return {**os.environ, **self.environment}


class _Feeder(threading.Thread):
    """Writes a program's input while its output is read; keeps an error."""

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
            pass  # The program ended first, and reports why.
        except Exception as error:
            # A partial context must not become an image: terminate instead of closing the input.
            self._error = error
            self._program.terminate()
        finally:
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def check(self) -> None:
        """Raise the error of the input, if any, after its end."""
        if self._error:
            raise self._error


def _without_advice(output: Iterable[bytes]) -> Iterator[str]:
    """The lines without Docker's notice about its legacy builder."""
    advice = False
    for raw in output:
        line = raw.decode("utf-8", errors="replace").rstrip()
        advice = bool(_ADVICE.match(line)) or (advice and line[:1] in ("", " "))
        if not advice:
            yield line


def docker_error(doing: str, lines: Sequence[str]) -> PeagleError:
    """The error that Docker's last lines describe."""
    line = _deciding(lines)
    message = f"{doing}: {line}"
    if _NOT_RUNNING.search(line):
        return DockerMissing(f"no Docker engine answers: {line}", WITHOUT_DOCKER)
    if _DISK_FULL.search(line):
        return UserError(
            f"the disk is full: {message}",
            Fix("Free some space", ("docker", "system", "prune")),
            code="disk-full",
        )
    if _TAG_EXISTS.search(line):
        return CloudError(
            message, "the tag exists with other content: choose another --tag", code="tag-exists"
        )
    if _NO_GPU.search(line):
        return UserError(message, "install the NVIDIA container toolkit, or omit --gpus")
    if _PORT_IN_USE.search(line):
        return UserError(
            message,
            "choose another --port, or omit it to use any free port",
            code="port-in-use",
        )
    if _DENIED.search(line):
        return CloudError(message, "log in to the registry, and check that the repository exists")
    if _NO_IMAGE.search(line):
        return NotFound(message, "check the spelling with `docker images`")
    if _UNREACHABLE.search(line):
        return CloudError(message, "check the registry's name and the network")
    return EngineError(f"{doing}: {_summary(lines)}", "fix the cause that Docker reports")


def _deciding(lines: Sequence[str]) -> str:
    """The last line that names an error, else the last one."""
    messages = _messages(lines)
    errors = [line for line in messages if _ERROR.search(line)]
    return _plain((errors or messages or ["no output"])[-1])


def _summary(lines: Sequence[str]) -> str:
    """The last lines, with the deciding one."""
    deciding = _deciding(lines)
    last = [_plain(line) for line in _messages(lines)][-_SHOWN_LINES:]
    shown = last if deciding in last else [deciding, *last[1:]]
    return " | ".join(line[:_SHOWN_CHARACTERS] for line in shown) or deciding


def _messages(lines: Sequence[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and not _USAGE.match(line.strip())]


def _plain(line: str) -> str:
    return re.sub(r"^(docker: |ERROR: |Error response from daemon: )+", "", line)


_NVIDIA = "nvidia"


@dataclass(frozen=True)
class DockerInfo:
    """``version`` of the engine, versions of the command's ``plugins`` (buildx, compose), and
    whether containers get ``gpus``."""

    version: str
    plugins: Mapping[str, str]
    gpus: bool


def docker_info(docker: Docker) -> DockerInfo:
    """What the Docker engine supports. Raises DockerMissing when no engine answers."""
    docker.check()
    try:
        info: dict[str, Any] = json.loads(
            docker.run("info", "--format", "{{json .}}", doing="querying its features")
        )
        plugins = {
            one["Name"]: one.get("Version", "")
            for one in (info.get("ClientInfo") or {}).get("Plugins") or []
        }
        devices = [one.get("ID", "") for one in info.get("DiscoveredDevices") or ()]
        gpus = _NVIDIA in (info.get("Runtimes") or {}) or any(_NVIDIA in one for one in devices)
        return DockerInfo(str(info.get("ServerVersion", "")), plugins, gpus)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError("the output of docker info is not valid", "update Docker") from error


def compose_command(docker: Docker) -> str:
    """The command of Compose on this machine: Docker's plugin (also if neither is installed), or
    Debian's separate program."""
    program, plugin = "docker-compose", f"{DOCKER} compose"
    try:
        docker.run("compose", "version", doing="looking for Compose")
    except PeagleError:
        return program if shutil.which(program) else plugin
    return plugin
