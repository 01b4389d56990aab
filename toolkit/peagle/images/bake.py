"""The weights that go into an image: the files that vLLM reads.

As for `peagle weights sync` (``peagle.checkpoints.weight_files``), copies in other formats are left
out: every start would pull them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from peagle.checkpoints import FolderSource, Source
from peagle.checkpoints.folder import check_links
from peagle.checkpoints.hub import HubSource, resolve_revision
from peagle.checkpoints.hub_client import Hub
from peagle.checkpoints.vocabulary import find_vocabulary, needs_vocabulary, vocabulary_folder
from peagle.checkpoints.weight_files import files_read
from peagle.data import weights_folder
from peagle.errors import Fix, Unsupported
from peagle.images.context import Member, members_of
from peagle.images.docker import Progress
from peagle.planning.plan import Plan, Weights
from peagle.render.image import VOCABULARY, Baked, Copied, Download
from peagle_serve.contract import ML_ROOT, VOCABULARY_FILE


def baked(plan: Plan, progress: Progress = lambda line: None) -> tuple[Baked, ...]:
    """The plan's weights for an image; a branch on the Hub becomes its current commit.

    Raises Unsupported for weights that cannot be baked in, CheckpointError for missing, incomplete
    or unreachable ones, and UserError for a link that leaves their folder.
    """
    of_drafter = plan.drafter.weights if plan.drafter else None
    found = (plan.target.weights, of_drafter)
    weights = tuple(_baked(one, progress) for one in found if one and one.kind != "image")
    return (*weights, *_vocabulary(weights, progress))


def _vocabulary(weights: tuple[Baked, ...], progress: Progress) -> Iterator[Copied]:
    """The vocabulary of a target that is downloaded; a copied folder has its own, if any."""
    target = next(iter(weights), None)
    if not isinstance(target, Download):
        return
    if not needs_vocabulary(HubSource(target.repo, target.commit, Hub.of_environment())):
        return
    found = find_vocabulary()
    if found is None:
        progress(
            f"{target.repo} needs {VOCABULARY_FILE} at start, and this machine does not have it: "
            f"the engine will download it; put it into {vocabulary_folder()} to add it"
        )
        return
    copied = Copied(VOCABULARY, str(found.parent), (VOCABULARY_FILE,), "")
    yield replace(copied, digest=_digest(members(copied)))


def members(copied: Copied) -> list[Member]:
    folder = Path(copied.folder)
    chosen = {folder / name for name in copied.files}
    return members_of(folder, copied.path, skip=lambda path: path not in chosen)


def _baked(weights: Weights, progress: Progress) -> Baked:
    if weights.kind == "s3":
        raise Unsupported(
            f"weights in S3 cannot be baked into an image: {weights.location}",
            "omit --bake-weights (SageMaker mounts them), or copy them to a folder first",
        )
    progress(f"reading {weights.location}")
    return _download(weights) if weights.kind == "hub" else _copied(weights)


def _download(weights: Weights) -> Download:
    """Lists the files; the build downloads them, without a token."""
    hub = Hub.of_environment()
    found = resolve_revision(hub, weights.location, weights.revision)
    if not found.is_public:
        raise Unsupported(
            f"{weights.location} is gated on the Hub, and a build does not receive your token",
            Fix(
                "omit --bake-weights; SageMaker mounts the model from S3; copy it with HF_TOKEN",
                ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
            ),
        )
    files = _files(HubSource(weights.location, found.commit, hub))
    return Download(weights.location, weights.revision or "main", found.commit, files)


def _copied(weights: Weights) -> Copied:
    folder = weights_folder(weights.location)
    check_links(Path(folder))
    below = PurePosixPath(weights.engine_path).relative_to(ML_ROOT)
    copied = Copied(f"weights/{below}", str(folder), _files(FolderSource(Path(folder))), "")
    return replace(copied, digest=_digest(members(copied)))


def _files(source: Source) -> tuple[str, ...]:
    sizes = source.names()
    return files_read(source.location, sizes, lambda name: source.read(name, 0, sizes[name]))


def _digest(found: list[Member]) -> str:
    digest = hashlib.sha256()
    for member in found:
        own = hashlib.sha256()
        for chunk in member.chunks():
            own.update(chunk)
        digest.update(f"{member.path}\0{own.hexdigest()}\n".encode())
    return digest.hexdigest()
