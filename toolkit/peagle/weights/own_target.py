"""A target that the catalogue does not have: its id on the Hub, a folder or an S3 prefix is read,
and joins the catalogue of the running command."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from peagle.catalog.find import UNKNOWN_DRAFTER, target_named
from peagle.catalog.schema import DRAFTLESS, Catalog, Drafter, Target
from peagle.checkpoints.entries import target_from_checkpoint
from peagle.checkpoints.models import (
    Checkpoint,
    ReadCheckpoint,
    is_hub_id,
    is_location,
    means_folder,
    s3_prefix,
    split_revision,
)
from peagle.errors import Fix, NotFound, UserError, nearest
from peagle.fit.building import located, read_target
from peagle.fit.weights import checkpoint_bytes
from peagle_serve.contract import is_s3_uri
from peagle_serve.heads import is_head


@dataclass(frozen=True)
class OwnTarget:
    """The catalogue with the target, under its id and the location that the user typed.

    ``checkpoint`` is that from which it comes, ``None`` where the catalogue has the target.
    """

    catalog: Catalog
    checkpoint: Checkpoint | None = None


def with_own_target(catalog: Catalog, pair: str, read: ReadCheckpoint) -> OwnTarget:
    """``catalog`` with the target of ``pair``, if that is a location instead of a name.

    ``read`` reads a location. Raises what it raises, CheckpointError for a model that cannot be
    planned, and UserError for a draft head.
    """
    if not is_own_target(catalog, pair):
        return OwnTarget(catalog)
    location, method = split_draftless(pair)
    folder, plus, name = location.rpartition("+")
    if plus and not os.path.exists(os.path.expanduser(location)) and means_folder(folder):
        raise UserError(
            f"{folder} is not in the catalogue, so that the drafter {name!r} is unknown",
            f"write {folder}+ngram, or {folder} with --drafter HEAD",
            code=UNKNOWN_DRAFTER,
        )
    checkpoint = _read(location, read)
    refuse_head(location, checkpoint)
    target = entry_of(checkpoint)
    if method is not None:
        target = target.model_copy(update={"drafters": (_draftless(catalog, method),)})
    added: Mapping[str, Target] = {target.id: target, location: target}
    targets = ChainMap(dict(added), catalog.targets)  # type: ignore[arg-type]
    origins = {**catalog.origins, target.id: checkpoint.location}
    return OwnTarget(replace(catalog, targets=targets, origins=origins), checkpoint)


def refuse_head(location: str, checkpoint: Checkpoint) -> None:
    """Raise UserError for the checkpoint of a draft head, where a model is expected."""
    if is_head(checkpoint.config):
        raise UserError(
            f"{location} holds a draft head, not a model",
            "pass it with --drafter, and its target in its place",
            code="head-not-a-target",
        )


def split_draftless(pair: str) -> tuple[str, str | None]:
    """The location in ``LOCATION+METHOD`` and the method that drafts without a head, such as
    ngram; ``None`` where the pair names no such method."""
    location, plus, name = pair.strip().rpartition("+")
    if plus and name.lower() in DRAFTLESS and not os.path.exists(os.path.expanduser(pair.strip())):
        return location, name.lower()
    return pair.strip(), None


def _draftless(catalog: Catalog, method: str) -> Drafter:
    """The drafter of that method, which is the same for every target. Raises NotFound."""
    for target in catalog.targets.values():
        for drafter in target.drafters:
            if drafter.method == method:
                return drafter
    raise NotFound(
        f"no target of the catalogue has the drafter {method}",
        "use the bundled catalogue",
        code=UNKNOWN_DRAFTER,
    )


def is_own_target(catalog: Catalog, pair: str) -> bool:
    """Whether this is the location of a target that the catalogue does not have, also with a
    method that drafts without a head: ``./llama+ngram``."""
    location, _ = split_draftless(pair)
    if not is_location(location) and not means_folder(location):
        return False
    return target_named(catalog, split_revision(location)[0]) is None


def is_on_hub(location: str) -> bool:
    """Whether a location, also with a method that drafts without a head, is on the Hub."""
    location, _ = split_draftless(location)
    return is_hub_id(location) and not means_folder(location)


def entry_of(checkpoint: Checkpoint) -> Target:
    """The target in a checkpoint; without headers, the size of its weights is estimated.

    Raises CheckpointError for an incomplete config.json, and for a cache or quantization that the
    memory model does not support.
    """
    with located(checkpoint):
        target, model = target_from_checkpoint(checkpoint), read_target(checkpoint)
    if checkpoint.tensors:
        return target
    size = checkpoint_bytes(model)
    return target.model_copy(update={"weight_bytes": size})


def target_not_read(
    location: str, command: tuple[str, ...], catalog: Catalog | None = None
) -> NotFound:
    """The error that nothing is read from ``location`` here; ``command`` is one that does.

    Raises CheckpointError for an S3 location without a bucket's name, which no command reads.
    """
    if is_s3_uri(location):
        s3_prefix(location)
    where = "S3" if is_s3_uri(location) else "the Hub"
    near = nearest(location, catalog.targets) if catalog and not is_s3_uri(location) else ""
    sentence = f"{near} to read it from {where}".strip()
    return NotFound(
        f"the catalogue has no target {location!r}", Fix(sentence, command), code="unknown-target"
    )


def _read(location: str, read: ReadCheckpoint) -> Checkpoint:
    if not means_folder(location):
        return read(location)
    folder = Path(location).expanduser()
    # An absolute path: the plan is independent of the working directory.
    checkpoint = read(str(folder.resolve() if folder.is_dir() else folder.absolute()))
    if checkpoint.tensors is None and checkpoint.other_weights:
        names = ", ".join(checkpoint.other_weights[:2])
        raise UserError(
            f"{location} has weights only as {names}",
            "convert them to safetensors first",
            code="weights-not-safetensors",
        )
    return replace(checkpoint, location=str(folder.resolve()))
