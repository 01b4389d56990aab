"""How a file is cut into parts, and the checksums of parts and whole.

The checksum of an object in parts is the SHA-256 of its parts' SHA-256, as S3 reckons it
(ChecksumType COMPOSITE), so it says something only together with the size of the parts.

Where weights are copied from: a folder, the hub at one commit, or another S3 prefix.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from peagle.aws.client import Aws
from peagle.aws.s3_source import S3Source
from peagle.checkpoints import FolderSource, Source, read_checkpoint
from peagle.checkpoints.config import CONFIG
from peagle.checkpoints.folder import check_links
from peagle.checkpoints.hub import COMMIT, HubSource, revision_of
from peagle.checkpoints.hub_client import Hub
from peagle.checkpoints.index import files_read
from peagle.data import weights_folder
from peagle.errors import CheckpointError
from peagle.planning.plan import Weights
from peagle.weights.layout import Place, place_of

PART_BYTES = 16 * 1024 * 1024
"""Large enough that a request costs little, small enough that a lost one does too."""

_MOST_PARTS = 10_000
"""S3 takes no more."""

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Part:
    """``size`` bytes of a file from ``start``; numbers begin at 1, as in S3."""

    number: int
    start: int
    size: int


def part_bytes(size: int) -> int:
    """How large the parts of a file of ``size`` bytes are: the same for every run."""
    smallest = -(-size // _MOST_PARTS)
    return max(PART_BYTES, -(-smallest // _MIB) * _MIB)


def parts_of(size: int, each: int) -> tuple[Part, ...]:
    """The parts of a file; an empty file is one empty part."""
    starts = range(0, size, each) if size else (0,)
    return tuple(Part(n, at, min(each, size - at)) for n, at in enumerate(starts, 1))


def sha256(content: bytes) -> str:
    """A part's checksum as S3 writes it."""
    return base64.b64encode(hashlib.sha256(content).digest()).decode()


def combined(checksums: Iterable[str]) -> str:
    """The object's checksum from its parts' ones; one part's is the object's own."""
    each = list(checksums)
    if len(each) == 1:
        return each[0]
    return sha256(b"".join(base64.b64decode(checksum) for checksum in each))


ATTEMPTS = 5
"""How often a part is asked for: a long copy meets every kind of network."""

_SMALL = 100_000_000


@dataclass(frozen=True)
class OriginFile:
    """A file with what is known of its contents: ``sha256`` or the git blob id, in hex."""

    name: str
    size: int
    sha256: str | None = None
    git: str | None = None


@dataclass(frozen=True)
class Origin:
    """Weights at one place.

    ``location`` names it with its commit, if it has one. ``left_out`` are files and bytes of its
    top level that vLLM does not read. ``copied_from`` is the S3 prefix for a server-side copy.
    """

    location: str
    files: tuple[OriginFile, ...]
    left_out: tuple[int, int]
    source: Source
    copied_from: Place | None = None
    patient: bool = False
    sleep: Callable[[float], object] = time.sleep

    @property
    def size(self) -> int:
        """All files together, in bytes."""
        return sum(file.size for file in self.files)

    def read(self, name: str, start: int, size: int) -> bytes:
        """Just these bytes. A network that fails is asked again some times.

        Raises CheckpointError when they cannot be had, or are fewer.
        """
        for attempt in range(ATTEMPTS if self.patient else 1):
            if attempt:
                self.sleep(2.0 ** (attempt - 1))
            try:
                return self._read(name, start, size)
            except CheckpointError as error:
                failed = error
        raise failed

    def _read(self, name: str, start: int, size: int) -> bytes:
        content = self.source.read(name, start, size) if size else b""
        if len(content) != size:
            raise CheckpointError(
                f"{self.location}/{name} ends too early: {len(content):,} of {size:,} bytes at "
                f"{start:,}",
                "it may be changing just now: repeat the command",
            )
        return content


def origin_of(weights: Weights, aws_of: Callable[[], Aws]) -> Origin:
    """What vLLM would read of these weights. A branch of the hub becomes its commit of now.

    The headers of all weight files are read, so that nothing damaged is copied. Raises
    CheckpointError for what is not there or only half there, and UserError for a folder with a
    link that leads out of it.
    """
    if weights.kind == "hub":
        commit = _commit(Hub.of_environment(), weights.location, weights.revision)
        return _origin(HubSource(weights.location, commit), patient=True)
    if weights.kind == "directory":
        folder = Path(weights_folder(weights.location))
        check_links(folder)
        return _origin(FolderSource(folder), weights.location)
    place = place_of(weights.location)
    return _origin(S3Source(aws_of(), weights.location), copied_from=place)


def _origin(
    source: Source,
    location: str | None = None,
    patient: bool = False,
    copied_from: Place | None = None,
) -> Origin:
    location = location or source.location
    sizes = source.names()
    names = files_read(location, sizes, lambda name: source.read(name, 0, sizes[name]))
    if CONFIG in sizes and any(name.endswith(".safetensors") for name in names):
        read_checkpoint(source)
    ours = isinstance(source, HubSource)
    files = tuple(_file(source, name, sizes[name]) if ours else OriginFile(name, sizes[name])
                  for name in names)  # fmt: skip
    others = [sizes[name] for name in sizes if name not in names]
    return Origin(location, files, (len(others), sum(others)), source, copied_from, patient)


def _file(source: Source, name: str, size: int) -> OriginFile:
    """A file of the hub, whose listing says what is in it."""
    said = source.digests(name)
    return OriginFile(name, size, said.get("sha256"), said.get("git") if size < _SMALL else None)


def _commit(hub: Hub, repo: str, revision: str | None) -> str:
    """The commit that a branch or tag is at now."""
    if revision and COMMIT.fullmatch(revision):
        return revision
    return revision_of(hub, repo, revision).commit


def check_whole(origin: Origin, file: OriginFile, content: bytes) -> None:
    """Raise CheckpointError when a file's bytes are not those that the hub's listing promised."""
    if file.sha256 is not None:
        check_digest(origin, file, hashlib.sha256(content).hexdigest())
    elif file.git is not None:
        blob = b"blob %d\0" % len(content) + content
        found = hashlib.sha1(blob, usedforsecurity=False).hexdigest()
        if found != file.git:
            raise _differs(origin, file)


def check_digest(origin: Origin, file: OriginFile, sha256: str) -> None:
    """Raise CheckpointError when the file's SHA-256 is not that of the hub's listing."""
    if file.sha256 not in (None, sha256):
        raise _differs(origin, file)


def _differs(origin: Origin, file: OriginFile) -> CheckpointError:
    return CheckpointError(
        f"{origin.location}/{file.name} came with other bytes than the hub lists",
        "nothing of it was kept: repeat the command; a proxy or mirror may be at fault",
    )
