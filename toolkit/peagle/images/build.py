"""Build the image of a plan on this machine, from a reproducible context, and push it.

An archive depends on the content of its files only: entries are sorted by path; owner, group and
times are zero. It is streamed. Of weights it holds the files that vLLM reads.

Images for CPUs are FROM an engine image, which is built once per base and lock file from the
packages of `peagle engine install`, so the build needs no network.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from peagle.checkpoints import FolderSource, Source
from peagle.checkpoints.files import (
    check_links,
    files_read,
    find_vocabulary,
    follow_link,
    link_homes,
    needs_vocabulary,
    vocabulary_folder,
)
from peagle.checkpoints.hub import Hub, HubSource, resolve_revision
from peagle.data import weights_folder
from peagle.errors import Fix, Unsupported, UserError
from peagle.findings import Finding
from peagle.images.docker import Docker, Image, Progress, parsing_output, show_image
from peagle.planning.plan import ABOUT_AWS, Plan, Weights
from peagle.render.image import (
    VOCABULARY,
    Baked,
    Copied,
    Download,
    Recipe,
    context_files,
    has_host,
    image_name,
    pinned,
    split_image,
    without_tag,
)
from peagle_serve import json_reader
from peagle_serve.contract import ML_ROOT, VOCABULARY_FILE

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A file of an archive: its path, its size in bytes, and what opens its content."""

    path: str
    size: int
    open: Callable[[], IO[bytes]]


def make_member(path: str, content: bytes) -> Member:
    return Member(path, len(content), lambda: io.BytesIO(content))


def collect_members(
    folder: Path, into: str, skip: Callable[[Path], bool] = lambda path: False
) -> list[Member]:
    """All files below ``folder``, at ``into`` in the archive; links are followed. Raises UserError
    for a link that is broken or leaves the folder."""
    homes = link_homes(folder)
    members = []
    for path in sorted(folder.rglob("*")):
        real = path if skip(path) else follow_link(path, homes)
        if skip(path) or real.is_dir():
            continue
        if not real.is_file():
            fix = "remove it, or choose another folder"
            raise UserError(f"{path} is not a regular file", fix, "not-a-file")
        inside = path.relative_to(folder).as_posix()
        members.append(Member(f"{into}/{inside}", real.stat().st_size, partial(io.FileIO, real)))
    return members


def write_tar(members: Iterable[Member], stream: IO[bytes]) -> None:
    """Write the archive; before its first file, each folder. Raises OSError for a file that has
    become shorter meanwhile."""
    folders = {"."}
    with tarfile.open(fileobj=stream, mode="w|", bufsize=_CHUNK_BYTES) as archive:
        for member in sorted(members, key=lambda member: member.path):
            for parent in reversed(PurePosixPath(member.path).parents):
                info = tarfile.TarInfo(parent.as_posix())  # owner, group and time are zero
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                if info.name not in folders:
                    folders.add(info.name)
                    archive.addfile(info)
            info = tarfile.TarInfo(member.path)
            info.size = member.size
            with member.open() as content:
                archive.addfile(info, content)


def pulled(docker: Docker, name: str, progress: Progress) -> dict[str, Any]:
    """Docker's description of the image ``name``, which is pulled if necessary."""
    image = docker.inspect("image", name)
    if image is None:
        progress(f"pulling {name}")
        docker.stream("pull", name, doing=f"pulling {name}", each_line=progress)
        image = docker.inspect("image", name) or {}
    return image


def with_digest(docker: Docker, base: str, progress: Progress = lambda line: None) -> str:
    """``base`` with its digest, so that the build can be repeated. A name without a registry may
    exist on this machine only; it stays as it is."""
    name, digest = split_image(base)
    if digest or not has_host(name):
        return base
    digests = read_digests(pulled(docker, name, progress), without_tag(name))
    return pinned(name, digests[0] if digests else None)


def read_digests(image: Mapping[str, Any], repository: str) -> list[str]:
    """The digests under which an image is in ``repository``, from Docker's description."""
    with parsing_output("docker image inspect"):
        references = [reference.partition("@") for reference in image.get("RepoDigests") or ()]
        return [digest for address, _, digest in references if address == repository]


@contextmanager
def explain_full_disk(what: str) -> Iterator[None]:
    """Raise UserError when the block fails because the disk of temporary files is full."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        message = f"the disk of {tempfile.gettempdir()} is full: {what} does not fit"
        fix = "free some space, or set TMPDIR to another folder"
        raise UserError(message, fix, "disk-full") from error


def baked(plan: Plan, progress: Progress = lambda line: None) -> tuple[Baked, ...]:
    """The plan's weights for an image; a branch on the Hub becomes its current commit. Raises
    Unsupported for weights that cannot be baked in."""
    parts = plan.weights.values()
    weights = tuple(_baked(part, progress) for part in parts if part.kind != "image")
    target = next(iter(weights), None)
    # The vocabulary of a target that is downloaded; a copied folder has its own, if any.
    if not isinstance(target, Download) or not needs_vocabulary(
        HubSource(target.repo, target.commit, Hub.of_environment())
    ):
        return weights
    vocabulary = find_vocabulary()
    if vocabulary is None:
        progress(
            f"{target.repo} needs {VOCABULARY_FILE} at start, and this machine does not have it: "
            f"the engine will download it; put it into {vocabulary_folder()} to add it"
        )
        return weights
    copied = Copied(VOCABULARY, str(vocabulary.parent), (VOCABULARY_FILE,), "")
    return (*weights, replace(copied, digest=_digest(members(copied))))


def members(copied: Copied) -> list[Member]:
    folder = Path(copied.folder)
    chosen = {folder / name for name in copied.files}
    return collect_members(folder, copied.path, skip=lambda path: path not in chosen)


def _baked(weights: Weights, progress: Progress) -> Baked:
    if weights.kind == "s3":
        raise Unsupported(
            f"weights in S3 cannot be baked into an image: {weights.location}",
            "omit --bake-weights (SageMaker mounts them), or copy them to a folder first",
            code="weights-in-s3",
        )
    progress(f"reading {weights.location}")
    if weights.kind != "hub":
        folder = weights_folder(weights.location)
        check_links(Path(folder))
        below = PurePosixPath(weights.engine_path).relative_to(ML_ROOT)
        copied = Copied(f"weights/{below}", str(folder), _files(FolderSource(Path(folder))), "")
        return replace(copied, digest=_digest(members(copied)))
    hub = Hub.of_environment()
    revision = resolve_revision(hub, weights.location, weights.revision)
    if not revision.is_public:
        raise Unsupported(
            f"{weights.location} is gated on the Hub, and a build does not receive your token",
            Fix(
                "omit --bake-weights; SageMaker mounts the model from S3; copy it with HF_TOKEN",
                ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
            ),
            code="weights-gated",
        )
    files = _files(HubSource(weights.location, revision.commit, hub))  # the build downloads them
    return Download(weights.location, weights.revision or "main", revision.commit, files)


def _files(source: Source) -> tuple[str, ...]:
    sizes = source.names()
    return files_read(source.location, sizes, lambda name: source.read(name, 0, sizes[name]))


def _digest(members: list[Member]) -> str:
    digest = hashlib.sha256()
    for member in members:
        with member.open() as content:
            file_digest = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
        digest.update(f"{member.path}\0{file_digest}\n".encode())
    return digest.hexdigest()


_ABOUT_REGISTRY = frozenset({"image-not-in-ecr", "image-not-in-region", "image-by-tag"})
_OF_SAGEMAKER = (ABOUT_AWS - _ABOUT_REGISTRY) | frozenset(
    {
        "cache-below-concurrency", "context-shortened", "fewer-cache-hits", "gpus-idle",
        "instance-scarce", "no-alarm-topic", "price-not-from-aws", "price-of-another-region",
        "price-snapshot", "several-instances",
        "speculation-loses", "speed-unverified", "vpc-routes", "weights-streamed",
    }
)  # fmt: skip
"""Warnings and notes about what a local engine does not have: the instance that is planned, its
memory, speed and price, and what SageMaker does with it."""

_DOWNLOAD_TIMEOUT = "download_timeout_seconds"
"""``where`` of the findings about the download by SageMaker; those about the startup concern a
local engine too."""


@dataclass(frozen=True)
class Built:
    image: Image
    seconds: float


def context(plan: Plan, recipe: Recipe) -> list[Member]:
    """The build context, with the baked weights of local folders."""
    files = [make_member(file.path, file.content) for file in context_files(plan, recipe)]
    copied = [weights for weights in recipe.weights if isinstance(weights, Copied)]
    return [*files, *(member for weights in copied for member in members(weights))]


def build(
    docker: Docker,
    plan: Plan,
    recipe: Recipe,
    tag: str | None = None,
    progress: Progress = lambda line: None,
) -> Built:
    """Build the image with the name ``tag``, else ``image_name``. Raises as ``Docker.stream``."""
    name = tag or image_name(plan, recipe)
    begun = time.monotonic()
    engine = for_gpus(docker) if recipe.runtime == "gpu" else docker
    engine.stream(
        "build", "--force-rm", "--tag", name, "-",
        doing=f"building {name}", stdin=partial(write_tar, context(plan, recipe)),
        each_line=progress,
    )  # fmt: skip
    return Built(show_image(docker, name), time.monotonic() - begun)


def for_gpus(docker: Docker) -> Docker:
    """The Docker engine, for the platform of AWS's images and of the GPU instances."""
    return Docker({"DOCKER_DEFAULT_PLATFORM": "linux/amd64", **docker.environment})


REPOSITORY = "peagle-engine-cpu"


def _template(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


_DOCKERFILE = _template("engine.Dockerfile")
"""It installs the engine's system library unless the base has it. The packages come without
bytecode, and containers may not write it: the build imports what every start imports, which takes a
start 18 s of processor time less."""


@dataclass(frozen=True)
class Packages:
    """An installed engine: ``folder`` is its site-packages, ``python`` is ``3.11``, ``lock`` the
    digest of the lock file that it was installed from."""

    vllm: str
    python: str
    folder: Path
    lock: str


def engine_image(
    docker: Docker, base: str, packages: Packages, progress: Progress = lambda line: None
) -> str:
    """The name of the image with that engine on ``base``, which is built unless it exists. The
    build fails unless ``base`` has venv and the engine's version of Python."""
    split_image(base)
    name = engine_image_name(str(pulled(docker, base, progress).get("Id", "")), packages)
    if docker.inspect("image", name) is not None:
        return name
    progress(f"building {name} (2 GB, once for this base and engine)")
    with explain_full_disk("the engine"), tempfile.TemporaryFile() as archive:
        docker.stream("build", "--force-rm", "--build-arg", f"BASE={base}", "--tag", name, "-",
                      doing=f"building {name}",
                      stdin=partial(write_tar, build_context(packages, archive)),
                      each_line=progress)  # fmt: skip
    return name


def engine_image_name(base_id: str, packages: Packages) -> str:
    """Repository and tag: the version, and a digest of all inputs of the image."""
    inputs = "\0".join((base_id, packages.lock, packages.python, _DOCKERFILE))
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
    return f"{REPOSITORY}:{packages.vllm}-{digest}"


def build_context(packages: Packages, archive: IO[bytes]) -> list[Member]:
    """The Dockerfile, and the packages as one ``archive``, which is written: builders unpack 32,000
    files faster than they copy them."""
    inside = f"lib/python{packages.python}/site-packages"
    files = collect_members(packages.folder, inside, skip=lambda path: "__pycache__" in path.parts)
    write_tar(files, archive)
    size = archive.tell()
    archive.seek(0)
    dockerfile = make_member("Dockerfile", _DOCKERFILE.encode())
    return [dockerfile, Member("engine.tar", size, lambda: archive)]


def findings_with_own_image(plan: Plan) -> tuple[Finding, ...]:
    """The plan's findings for an image of this toolkit, which exposes speculation counters."""
    return tuple(finding for finding in plan.findings if finding.code != "log-stats-off")


def findings_on_this_machine(plan: Plan, engine_kind: str) -> tuple[Finding, ...]:
    """The findings for a local engine: all errors but those of ECR for a container, and what does
    not concern SageMaker, its instances or their prices."""
    left_out = _ABOUT_REGISTRY if engine_kind == "docker" else {"image-by-tag"}
    return tuple(
        finding
        for finding in findings_with_own_image(plan)
        if finding.code not in left_out
        and (
            finding.level == "error"
            or (finding.code not in _OF_SAGEMAKER and finding.where != _DOWNLOAD_TIMEOUT)
        )
    )


def check_format(plan: Plan, format: str) -> tuple[Finding, ...]:
    """The plan's findings for its files in that format of `peagle render`."""
    if format == "compose":
        return findings_on_this_machine(plan, "docker")
    return findings_with_own_image(plan) if format == "dockerfile" else plan.findings


_HELPER = "peagle"
_VARIABLE = "PEAGLE_REGISTRY_LOGINS"
_KEPT = ("contexts", "cli-plugins", "buildx")
"""The parts of the user's Docker configuration that a command needs: the engine's address and the
builder. The user's own logins are not copied."""


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
        credentials = {login.host: (login.user, login.password) for login in logins}
        path = os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", os.defpath)))
        yield Docker(
            {**docker.environment, "DOCKER_CONFIG": str(folder), "PATH": path,
             _VARIABLE: json.dumps(credentials)}
        )  # fmt: skip


def push(
    docker: Docker,
    name: str,
    address: str,
    logins: Sequence[Login] = (),
    progress: Progress = lambda line: None,
) -> str:
    """Push the image ``name`` as ``address``; returns the address with its digest. Raises
    CloudError when the registry rejects the image or the tag exists, and as ``Docker.run``."""
    doing = f"pushing {address}"
    repository = repository_part(address)
    docker.run("tag", name, address, doing=doing)
    with logged_in(docker, logins) as engine:
        engine.stream("push", address, doing=doing, each_line=progress)
    digests = read_digests(docker.inspect("image", address) or {}, repository)
    return f"{repository}@{digests[-1]}" if digests else address


def repository_part(address: str) -> str:
    """``host:5000/name`` of ``host:5000/name:tag``. Raises UserError without a registry's host."""
    if not has_host(address):
        fix = "use registry.example.com/name:tag"
        raise UserError(f"{address!r} has no registry", fix, "no-registry")
    return without_tag(address)


def _configure(folder: Path, hosts: Sequence[str]) -> None:
    """A Docker configuration with names of registries and without secrets."""
    docker_config = Path(os.environ.get("DOCKER_CONFIG") or os.path.expanduser("~/.docker"))
    for kept in _KEPT:
        if (docker_config / kept).is_dir():
            (folder / kept).symlink_to(docker_config / kept)
    document: dict[str, object] = {"credHelpers": dict.fromkeys(hosts, _HELPER)}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        config = json_reader.read_file(docker_config / "config.json")
        document["currentContext"] = str(config["currentContext"])
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    helper = folder / "bin" / f"docker-credential-{_HELPER}"
    helper.parent.mkdir()
    source = folder / "helper.py"
    source.write_text(_template("credential-helper.py.txt"), encoding="utf-8")
    command = shlex.join([sys.executable, "-I", str(source)])
    helper.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    helper.chmod(0o700)
