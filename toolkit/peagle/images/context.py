"""Reproducible build contexts: the base image, and the weights that go into an image.

An archive depends on the content of its files only: entries are sorted by path; owner, group and
times are zero; modes are 644 and 755. It is streamed, also inside another archive, whose header
needs its size beforehand: so ``tarfile`` makes the headers, and the content is not copied to disk.
Of weights it holds the files that vLLM reads, as for `peagle weights sync`: every start would pull
copies in other formats.
"""

from __future__ import annotations

import errno
import hashlib
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from peagle.checkpoints import FolderSource, Source
from peagle.checkpoints.files import check_links, files_read, follow_link
from peagle.checkpoints.hub import Hub, HubSource, resolve_revision
from peagle.checkpoints.vocabulary import find_vocabulary, needs_vocabulary, vocabulary_folder
from peagle.data import data_folder, weights_folder
from peagle.errors import Fix, Unsupported, UserError
from peagle.images.docker import Docker, Progress, parsing_output
from peagle.planning.plan import Plan, Weights
from peagle.render.image import (
    VOCABULARY,
    Baked,
    Copied,
    Download,
    has_host,
    pinned,
    split_image,
    without_tag,
)
from peagle_serve.checkpoint import link_homes
from peagle_serve.contract import ML_ROOT, VOCABULARY_FILE

_FILE_MODE, _FOLDER_MODE = 0o644, 0o755
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Member:
    """A file of an archive: its path, its size in bytes, and its content in chunks."""

    path: str
    size: int
    chunks: Callable[[], Iterable[bytes]]


def member_of(path: str, content: bytes) -> Member:
    return Member(path, len(content), lambda: (content,))


def members_of(
    folder: Path, into: str, skip: Callable[[Path], bool] = lambda path: False
) -> list[Member]:
    """All files below ``folder``, at ``into`` in the archive; links are followed. Raises UserError
    for a broken link or one that leaves the folder: everything in an image must be in the folder
    that the user named."""
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
        chunks = partial(_read_chunks, real)
        members.append(Member(f"{into}/{inside}", real.stat().st_size, chunks))
    return members


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def tar(members: Iterable[Member]) -> Iterator[bytes]:
    """The archive in chunks. Raises UserError when the size of a file changes meanwhile."""
    total = 0
    for header, member in _entries(members):
        yield header
        left = member.size
        for chunk in member.chunks():
            left -= len(chunk)
            if left < 0:
                break
            yield chunk
        if left != 0:
            message = f"{member.path} changed while being read"
            raise UserError(message, "repeat the command", "source-changed")
        yield b"\0" * (_padded(member.size) - member.size)
        total += len(header) + _padded(member.size)
    yield b"\0" * (_archive_size(total) - total)


def tar_member(path: str, members: Iterable[Member]) -> Member:
    """An archive of ``members`` as a file of another archive."""
    held = list(members)
    total = sum(len(header) + _padded(member.size) for header, member in _entries(held))
    return Member(path, _archive_size(total), lambda: tar(held))


def _entries(members: Iterable[Member]) -> Iterator[tuple[bytes, Member]]:
    """Each member with its header; before its first file, each folder."""

    def header(path: str, size: int, mode: int, kind: bytes) -> bytes:
        info = tarfile.TarInfo(path)  # owner, group and time are zero by default
        info.size, info.mode, info.type = size, mode, kind
        return info.tobuf(tarfile.PAX_FORMAT)

    folders = {"."}
    for member in sorted(members, key=lambda member: member.path):
        for parent in reversed(PurePosixPath(member.path).parents):
            folder = parent.as_posix()
            if folder not in folders:
                folders.add(folder)
                yield header(folder, 0, _FOLDER_MODE, tarfile.DIRTYPE), member_of(folder, b"")
        yield header(member.path, member.size, _FILE_MODE, tarfile.REGTYPE), member


def _padded(size: int) -> int:
    return size + -size % tarfile.BLOCKSIZE


def _archive_size(total: int) -> int:
    """The size of the archive: two empty blocks follow, then zeros up to a whole record."""
    closed = total + 2 * tarfile.BLOCKSIZE
    return closed + -closed % tarfile.RECORDSIZE


def source_revision() -> str | None:
    """The commit of the toolkit's source, with ``-dirty`` for uncommitted changes; ``None`` for an
    installed package."""
    root = data_folder("containers").parent
    if not (root / ".git").exists():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


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
    digests = digests_of(pulled(docker, name, progress), without_tag(name))
    return pinned(name, digests[0] if digests else None)


def digests_of(image: Mapping[str, Any], repository: str) -> list[str]:
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
    Unsupported for weights that cannot be baked in, CheckpointError for missing, incomplete or
    unreachable ones, and UserError for a link that leaves their folder."""
    of_drafter = plan.drafter.weights if plan.drafter else None
    parts = (plan.target.weights, of_drafter)
    weights = tuple(_baked(part, progress) for part in parts if part and part.kind != "image")
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
    return members_of(folder, copied.path, skip=lambda path: path not in chosen)


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
        file_digest = hashlib.sha256()
        for chunk in member.chunks():
            file_digest.update(chunk)
        digest.update(f"{member.path}\0{file_digest.hexdigest()}\n".encode())
    return digest.hexdigest()
