"""The ``docker`` command, argv lists in, text or an error out; and the toolkit's images in it.

The command instead of a library: it needs no dependency and uses the engine that the user has
configured (context, DOCKER_HOST, rootless, remote).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

from peagle.checks.facts import digest_in
from peagle.errors import (
    CloudError,
    DockerMissing,
    EngineError,
    Fix,
    NotFound,
    PeagleError,
    UserError,
    parsing,
)
from peagle.render.image import CONTENT_LABEL, pinned
from peagle_serve import json_reader

DOCKER = "docker"
WITHOUT_DOCKER = "install and start Docker; local engines also run without it (--engine process)"

Progress = Callable[[str], object]
"""Called with each line that tells the user what happens."""

_BUILD_SETTINGS = {
    "BUILDKIT_PROGRESS": "plain",
    # SageMaker accepts an image manifest, and no index with attestations.
    "BUILDX_NO_DEFAULT_ATTESTATIONS": "1",
    "SOURCE_DATE_EPOCH": "0",
}
_QUERY_SECONDS = 60
_KEPT_LINES, _SHOWN_LINES, _SHOWN_CHARACTERS = 40, 3, 200

_USAGE = re.compile(r"(Run|See) '[^']+ --help'|Usage:")
"""Lines that follow an error and do not explain it."""
_PREFIX = re.compile(r"^(docker: |ERROR: |Error response from daemon: )+")
_ERROR = re.compile(r"error|denied|cannot|no such|no space|invalid", re.IGNORECASE)
_BASE, _BASE_DIGEST = "org.opencontainers.image.base.name", "org.opencontainers.image.base.digest"
_BUILD = Fix("build one", ("peagle", "image", "build", "PAIR"))
_NVIDIA = "nvidia"


_KNOWN: tuple[tuple[str, type[PeagleError], str | Fix, str], ...] = (
    (r"Cannot connect to the Docker daemon|error during connect|Is the docker daemon running"
     r"|permission denied while trying to connect", DockerMissing, WITHOUT_DOCKER, ""),
    (r"(?i)no space left on device|disk quota exceeded", UserError,
     Fix("free some space", ("docker", "system", "prune")), "disk-full"),
    (r"(?i)tag .*(is|are) immutable|ImageTagAlreadyExists", CloudError,
     "the tag exists with other content: choose another --tag", "tag-exists"),
    (r"could not select device driver|nvidia-container-cli", UserError,
     "install the NVIDIA container toolkit, or omit --gpus", "gpu-runtime-missing"),
    (r"port is already allocated|address already in use", UserError,
     "choose another --port, or omit it to use any free port", "port-in-use"),
    (r"(?i)denied|unauthorized|no basic auth credentials|authentication required|403 Forbidden"
     r"|authorization token has expired", CloudError,
     "log in to the registry, and check that the repository exists", "registry-denied"),
    (r"No such (image|object|container|volume)|manifest unknown|not found|repository does not",
     NotFound, Fix("check the spelling", ("docker", "images")), ""),
    (r"no such host|connection refused|i/o timeout|TLS handshake|EOF$"
     r"|server gave HTTP response", CloudError,
     "check the registry's name and the network", "registry-unreachable"),
)  # fmt: skip
"""Errors of Docker: the pattern of the line, the error that the user reads, its fix and code; the
first match counts."""

_DOCKER_FAILED = "docker-failed"
"""A command of Docker failed; the message has its last lines.

Fix: fix the problem that Docker reports
"""


@dataclass(frozen=True)
class Docker:
    """The engine that ``docker`` reaches. ``environment`` is added to the command's environment."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise DockerMissing unless an engine answers."""
        self.run("version", "--format", "{{.Server.Version}}", doing="docker version")

    def run(self, *arguments: str, doing: str) -> str:
        """The output of ``docker ARGUMENTS``. ``doing`` begins an error's message.
        Raises DockerMissing, NotFound, UserError, CloudError or EngineError."""
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
            message = f"{doing}: Docker does not respond"
            raise EngineError(message, "restart Docker", code="docker-missing") from None
        if done.returncode:
            raise docker_error(doing, done.stderr.splitlines() or done.stdout.splitlines())
        return done.stdout

    def inspect(self, kind: str, name: str) -> dict[str, Any] | None:
        """``docker KIND inspect NAME``; ``None`` when there is no such image or container."""
        try:
            printed = self.run(kind, "inspect", name, doing=f"inspecting {name}")
        except NotFound:
            return None
        with parsing_output(f"docker {kind} inspect"):
            description = json_reader.read(printed, "the output")[0]
            if not isinstance(description, dict):
                raise TypeError("not an object")
            return description

    def stream(
        self,
        *arguments: str,
        doing: str,
        stdin: Callable[[IO[bytes]], None] = lambda stream: None,
        each_line: Progress = lambda line: None,
    ) -> None:
        """Run ``docker ARGUMENTS`` with what ``stdin`` writes as its input; pass each line of
        output on. Raises as ``run`` and ``stdin`` do; an interrupt ends the command."""
        last: list[str] = []
        program = subprocess.Popen(
            self.argv(*arguments),
            env={**self.variables(), **_BUILD_SETTINGS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        # The program closes its output or is terminated, so its input ends before the pool does.
        with program, ThreadPoolExecutor(1, thread_name_prefix="docker input") as pool:
            feeding = pool.submit(_feed, program, stdin)
            try:
                for raw in program.stdout or ():
                    line = raw.decode("utf-8", errors="replace").rstrip()
                    last = [*last[-_KEPT_LINES:], line]
                    each_line(line)
            except BaseException:
                program.terminate()
                raise
        feeding.result()  # first: an error of the input causes the command to fail
        if program.returncode:
            raise docker_error(doing, last)

    def argv(self, *arguments: str) -> list[str]:
        """The complete argv. Raises DockerMissing when this machine has no ``docker``."""
        path = shutil.which(DOCKER)
        if path is None:
            raise DockerMissing("docker is not installed on this machine", WITHOUT_DOCKER)
        return [path, *arguments]

    def variables(self) -> dict[str, str]:
        return {**os.environ, **self.environment}


def _feed(program: subprocess.Popen[bytes], write: Callable[[IO[bytes]], None]) -> None:
    """Write a program's input. Raises the errors of ``write``."""
    stream = program.stdin
    assert stream is not None
    try:
        write(stream)
    except BrokenPipeError:
        pass  # the program ended first, and reports why
    except BaseException:
        program.terminate()  # before its input is closed: half a context must not become an image
        raise
    finally:
        with contextlib.suppress(BrokenPipeError):
            stream.close()


def docker_error(doing: str, lines: Sequence[str]) -> PeagleError:
    """The error that Docker's last lines describe."""
    stripped = (line.strip() for line in lines)
    messages = [_PREFIX.sub("", line) for line in stripped if line and not _USAGE.match(line)]
    deciding = next(filter(_ERROR.search, reversed(messages)), (messages or ["no output"])[-1])
    for pattern, kind, remedy, code in _KNOWN:
        if re.search(pattern, deciding):
            return kind(f"{doing}: {deciding}", remedy, code)
    last = messages[-_SHOWN_LINES:]
    shown = last if deciding in last else [deciding, *last[1:]]
    summary = " | ".join(line[:_SHOWN_CHARACTERS] for line in shown)
    fix = "fix the problem that Docker reports"
    return EngineError(f"{doing}: {summary}", fix, code=_DOCKER_FAILED)


def connect_docker() -> Docker:
    """The Docker engine of this machine. Raises DockerMissing when none responds."""
    docker = Docker()
    docker.check()
    return docker


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
    printed = docker.run("info", "--format", "{{json .}}", doing="docker info")
    with parsing_output("docker info"):
        info = json_reader.read(printed, "the output")
        plugins = {
            plugin["Name"]: plugin.get("Version", "")
            for plugin in (info.get("ClientInfo") or {}).get("Plugins") or []
        }
        devices = [device.get("ID", "") for device in info.get("DiscoveredDevices") or ()]
        in_devices = any(_NVIDIA in device for device in devices)
        gpus = _NVIDIA in (info.get("Runtimes") or {}) or in_devices
        return DockerInfo(str(info.get("ServerVersion", "")), plugins, gpus)


def parsing_output(command: str) -> contextlib.AbstractContextManager[None]:
    """Raise EngineError where the block fails to parse the command's output."""
    return parsing(f"the output of {command}", EngineError, "update Docker")


@dataclass(frozen=True)
class Image:
    """An image that ``peagle image build`` made, for the ``runtime`` ``gpu`` or ``cpu``.
    ``size_bytes`` is of the whole image and ``layer_bytes`` of the layers on top of ``base``,
    ``None`` when the base is not on this machine; both in bytes. ``digests`` are its addresses with
    digest in registries."""

    name: str
    id: str
    created: str
    pair: str
    runtime: str
    base: str
    size_bytes: int
    layer_bytes: int | None
    user: str
    labels: Mapping[str, str]
    digests: tuple[str, ...]

    @property
    def baked(self) -> bool:
        """Whether it contains the pair's weights."""
        return self.labels.get("peagle.weights") == "baked"

    @property
    def content(self) -> str:
        """The digest of its content; empty for images of older versions of the toolkit."""
        return self.labels.get(CONTENT_LABEL, "")

    @property
    def digest(self) -> str:
        """The image's digest in a registry, else its local id; empty for an unchecked image."""
        return next(filter(None, map(digest_in, self.digests)), self.id)


def show_image(docker: Docker, name: str) -> Image:
    """The image ``name``. Raises NotFound, and UserError if this toolkit did not build it."""
    image = docker.inspect("image", name)
    if image is None:
        raise NotFound(f"there is no image {name} on this machine", _BUILD, code="image-missing")
    with parsing_output("docker image inspect"):
        labels = (image.get("Config") or {}).get("Labels") or {}
        if "peagle.pair" not in labels:
            raise UserError(f"{name} was not built by this toolkit", _BUILD, code="foreign-image")
        base_name, layer_bytes = labels.get(_BASE) or "none", None
        # An image that was pulled by digest has no name.
        base = docker.inspect("image", pinned(base_name, labels.get(_BASE_DIGEST)))
        base = base or docker.inspect("image", base_name)
        if base is not None:
            below = base.get("RootFS", {}).get("Layers") or []
            if image.get("RootFS", {}).get("Layers", [])[: len(below)] == below:
                layer_bytes = int(image["Size"]) - int(base["Size"])
        return Image(
            name=name,
            id=str(image["Id"]),
            created=str(image["Created"]),
            pair=labels["peagle.pair"],
            runtime=labels["peagle.runtime"],
            base=labels.get(_BASE, ""),
            size_bytes=int(image["Size"]),
            layer_bytes=layer_bytes,
            user=str(image["Config"].get("User", "")),
            labels={name: str(value) for name, value in sorted(labels.items()) if value},
            digests=tuple(map(str, image.get("RepoDigests") or ())),
        )


def list_images(docker: Docker, **labels: str) -> tuple[Image, ...]:
    """The toolkit's images with these labels (without ``peagle.``), newest first."""
    filters = ["label=peagle.pair", *(f"label=peagle.{key}={labels[key]}" for key in labels)]
    options = [word for condition in filters for word in ("--filter", condition)]
    printed = docker.run("image", "ls", *options, "--format", "{{json .}}", doing="listing images")
    with parsing_output("docker image ls"):
        rows = [json_reader.read(line, "a line") for line in printed.splitlines()]
        names = [f"{row['Repository']}:{row['Tag']}" for row in rows if row["Tag"] != "<none>"]
    images = [show_image(docker, name) for name in names]
    return tuple(sorted(images, key=lambda image: image.created, reverse=True))


def check_pair(image: Image, pair: str, command: Sequence[str]) -> None:
    """Raise UserError for an image of another pair; ``command`` builds the right one."""
    if image.pair != pair:
        message = f"the image {image.name} was built for {image.pair}, not for {pair}"
        fix = Fix("omit --image, or build another image", tuple(command))
        raise UserError(message, fix, code="image-of-another-pair")
