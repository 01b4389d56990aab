"""Where weights are copied from: a folder, the Hub at one commit, or another S3 prefix."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from peagle.aws.client import Aws
from peagle.aws.s3 import S3Source
from peagle.catalog.schema import Catalog
from peagle.checkpoints import FolderSource, Source, read_checkpoint
from peagle.checkpoints.files import CONFIG, check_links, files_read
from peagle.checkpoints.hub import COMMIT, Hub, HubSource, resolve_revision
from peagle.checkpoints.vocabulary import with_vocabulary
from peagle.data import weights_folder
from peagle.errors import CheckpointError, UserError
from peagle.findings import Finding
from peagle.options import Options
from peagle.planning.drafter import choose_drafter
from peagle.planning.plan import Weights
from peagle.planning.weights import place_weights
from peagle.weights.layout import PARTS, WeightsPrefix, weights_prefix

ATTEMPTS = 5
"""How often a part is read from the Hub before the sync fails."""


@dataclass(frozen=True)
class PairWeights:
    """The weights of a pair by part, and what the manifest says of it: the catalogue's ``name``,
    how its drafter drafts (``None``: unknown), and the parts whose location the user named."""

    weights: Mapping[str, Weights]
    name: str
    parallel_drafting: bool | None = None
    named: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()


def weights_of_pair(
    catalog: Catalog,
    name: str,
    named: Mapping[str, Weights],
    parts: tuple[str, ...] = PARTS,
) -> PairWeights:
    """The weights of a pair, from the catalogue or as ``named`` by the user.

    Raises UserError for an unknown pair, and when only a drafter is asked for that has no weights.
    """
    # The user's own head replaces any other, public or not.
    options = Options(pair=name, speculation="drafter" in parts and "drafter" not in named)
    selected = choose_drafter(options, catalog)
    placed = place_weights(options, catalog, selected.value, "weights").value
    weights = {"target": placed.target, "drafter": placed.drafter} | dict(named)
    if parts == ("drafter",) and weights["drafter"] is None:
        raise UserError(
            f"{name} drafts without weights", "leave out --drafter-only", code="drafts-without-head"
        )
    drafter = selected.value.drafter
    return PairWeights(
        {part: each for part, each in weights.items() if each and part in parts},
        selected.value.name,
        drafter.parallel_drafting if drafter else None,
        frozenset(named),
        selected.findings,
    )


@dataclass(frozen=True)
class SourceFile:
    """A file, and what the source lists of its contents: SHA-256 or git blob id, in hex."""

    name: str
    size: int
    sha256: str | None = None
    git: str | None = None


@dataclass(frozen=True)
class WeightSource:
    """The weights at one location.

    ``location`` includes the commit, where there is one. ``left_out`` are count and bytes of the
    files at its top level that vLLM does not read. ``copied_from`` is the S3 prefix of a
    server-side copy. A ``remote`` source is read again after a network failure.
    """

    location: str
    files: tuple[SourceFile, ...]
    left_out: tuple[int, int]
    source: Source
    copied_from: WeightsPrefix | None = None
    remote: bool = False

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def read(self, name: str, start: int, size: int) -> bytes:
        """Exactly these bytes of a file. Raises CheckpointError when they cannot be read."""
        for attempt in range(ATTEMPTS if self.remote else 1):
            if attempt:
                sleep(2.0 ** (attempt - 1))
            try:
                content = self.source.read(name, start, size) if size else b""
            except CheckpointError as error:
                failure = error
                continue
            if len(content) == size:
                return content
            failure = CheckpointError(
                f"{self.location}/{name} ends too early: {len(content):,} of {size:,} bytes at "
                f"{start:,}",
                "the file may be changing; run the command again",
                code="source-changed",
            )
        raise failure


class SourceStream:
    """The bytes of a file in order, as a transfer reads them. The last read raises CheckpointError
    unless they are those that the Hub lists, so that other bytes never become an object."""

    def __init__(self, source: WeightSource, file: SourceFile) -> None:
        self._source, self._file, self._at = source, file, 0
        self._listed, self._hash = file.sha256, hashlib.sha256()
        if file.sha256 is None and file.git is not None:
            prefix = b"blob %d\0" % file.size
            self._listed, self._hash = file.git, hashlib.sha1(prefix, usedforsecurity=False)

    def read(self, size: int = -1) -> bytes:
        left = self._file.size - self._at
        content = self._source.read(
            self._file.name, self._at, left if size < 0 else min(size, left)
        )
        self._at += len(content)
        if self._listed is not None:
            self._hash.update(content)
            if self._at == self._file.size and self._hash.hexdigest() != self._listed:
                raise CheckpointError(
                    f"{self._source.location}/{self._file.name} does not match the checksum on the "
                    "Hub",
                    "the file was not stored; run the command again. A proxy or mirror may be the "
                    "cause",
                    code="checksum-mismatch",
                )
        return content


def open_source(weights: Weights, connect: Callable[[], Aws]) -> WeightSource:
    """The files that vLLM reads of these weights. A branch of the Hub becomes its current commit.

    Reads the headers of all weight files, so that no damaged file is copied. Raises CheckpointError
    for missing or incomplete weights, and UserError for a folder with a link that leads out of it.
    """
    if weights.kind == "hub":
        commit = weights.revision
        if not (commit and COMMIT.fullmatch(commit)):
            hub = Hub.of_environment()
            commit = resolve_revision(hub, weights.location, weights.revision).commit
        return _open(HubSource(weights.location, commit), remote=True)
    if weights.kind == "directory":
        folder = Path(weights_folder(weights.location))
        check_links(folder)
        return _open(FolderSource(folder), weights.location)
    prefix = weights_prefix(weights.location)
    return _open(S3Source(connect(), weights.location), copied_from=prefix)


def _open(
    source: Source,
    location: str | None = None,
    copied_from: WeightsPrefix | None = None,
    remote: bool = False,
) -> WeightSource:
    location = location or source.location
    source = source if copied_from else with_vocabulary(source)
    sizes = source.names()
    names = files_read(location, sizes, lambda name: source.read(name, 0, sizes[name]))
    if CONFIG in sizes and any(name.endswith(".safetensors") for name in names):
        read_checkpoint(source)
    files = []
    for name in names:
        size = sizes[name]
        listed = source.digests(name) if remote else {}
        files.append(SourceFile(name, size, listed.get("sha256"), listed.get("git")))
    others = [sizes[name] for name in sizes if name not in names]
    return WeightSource(
        location, tuple(files), (len(others), sum(others)), source, copied_from, remote
    )
