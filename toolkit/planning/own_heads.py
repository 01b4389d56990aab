"""The user's own head as a drafter: what its config says, and else what such heads are like."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from toolkit.catalog.models import Catalog, Drafter, Target
from toolkit.findings import Finding, error, note
from toolkit.planning.choice import Choice
from toolkit.planning.heads import MASK, Head, has_mask, is_head, mismatch, read_head, weight_bytes
from toolkit.planning.models import Options

OWN = "own"
"""The name of a head that is not in the catalogue."""

_HUB = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*(@[\w.\-/]+)?", re.ASCII)
_FOLDER = re.compile(r"[/~.]")


def is_location(text: str) -> bool:
    """Whether ``--drafter`` names weights (``s3://``, folder, Hugging Face id), not a drafter."""
    return is_s3(text) or is_folder(text) or _HUB.fullmatch(text) is not None


def is_s3(text: str) -> bool:
    """Whether this is an ``s3://`` address."""
    return text.lower().startswith("s3://")


def is_folder(text: str) -> bool:
    """Whether this is written as a folder: ``/...``, ``./...``, ``../...`` or ``~/...``."""
    return _FOLDER.match(text) is not None


def split_revision(location: str) -> tuple[str, str | None]:
    """A Hugging Face id and the revision after its ``@``; other places have none."""
    name, _, revision = location.partition("@")
    return (name, revision) if revision and _HUB.fullmatch(location) else (location, None)


def own_head(
    location: str, options: Options, target: Target, kind: Drafter, catalog: Catalog
) -> Choice[Drafter]:
    """The head at ``location`` as a drafter of the kind of ``kind``.

    ``options`` hold the head's config.json and tensors when somebody has read them; what is no
    head, or does not belong to the target, is a finding. When ``kind`` is not public, the head is
    taken for that very head.
    """
    config = options.drafter_config
    wanted, revision = split_revision(location)
    strangers = tuple(_of_another_target(wanted, target, catalog))
    own = {
        "title": f"your own head {location}",
        "public": True,
        "weights": wanted,
        "revision": revision,
        "licence": None,
        "fallback": None,
    }
    unknown = {} if not kind.public else {"name": OWN, "k_trained": None, "published": ()}
    if config is None:
        drafter = kind.model_copy(update=own | unknown)
        return Choice(_sourced(drafter, kind), findings=(*strangers, _not_read(location, kind)))
    head = read_head(config)
    if head.parallel_drafting != kind.parallel_drafting:
        unknown = {"name": OWN, "k_trained": None, "published": ()}
        kind = _like(head.parallel_drafting, kind, target)
    said = {
        "parallel_drafting": head.parallel_drafting,
        "format": "speculators" if head.speculators_format else "vllm",
        "hidden_layers": head.layers,
        "weight_bytes": weight_bytes(head) or kind.weight_bytes,
        "max_positions": head.max_positions,
        "attention": head.attention or kind.attention,
    }
    drafter = _sourced(kind.model_copy(update=own | unknown | said), kind)
    if not is_head(config):
        return Choice(drafter, findings=(*strangers, _no_head(location, config)))
    wrong = (
        *_misfit(location, mismatch(head, target)),
        *_unmasked(location, head, options.drafter_tensors),
    )
    return Choice(drafter, findings=(*strangers, *wrong))


def _sourced(own: Drafter, kind: Drafter) -> Drafter:
    """The own head with the truth about its numbers: they are those of the catalogue's head."""
    return own.model_copy(update={"source": f"{kind.title} ({kind.source})"})


def _like(parallel_drafting: bool, kind: Drafter, target: Target) -> Drafter:
    """A drafter of the target that drafts as the head does, for its K and its settings."""
    alike = (d for d in target.drafters if d.method == kind.method)
    return next((d for d in alike if d.parallel_drafting == parallel_drafting), kind)


def _not_read(location: str, kind: Drafter) -> Finding:
    called = "P-EAGLE" if kind.parallel_drafting else "EAGLE-3"
    message = f"{location} is taken for a head like {kind.title} ({called}); it was not read"
    fix = "give the head as a folder to have its config.json checked"
    return note("head-not-read", "drafter", message, fix)


def _no_head(location: str, config: Mapping[str, Any]) -> Finding:
    classes = config.get("architectures")
    what = ", ".join(map(str, classes)) if isinstance(classes, list) and classes else "nothing"
    message = f"{location} is no draft head: its config.json names {what}, not EAGLE-3 or P-EAGLE"
    fix = "name the folder of the head that was trained for this target, not that of a model"
    return error("head-not-a-drafter", "drafter", message, fix)


def _unmasked(location: str, head: Head, tensors: tuple[str, ...] | None) -> tuple[Finding, ...]:
    """vLLM refuses such a head when it loads it, after minutes of a paid instance."""
    if not head.parallel_drafting or tensors is None or has_mask(tensors):
        return ()
    message = f"{location} drafts in parallel, but its weights have no tensor {MASK}"
    fix = "copy the head again, or train it with its mask"
    return (error("head-without-mask", "drafter", message, fix),)


def _misfit(location: str, why: str | None) -> tuple[Finding, ...]:
    if why is None:
        return ()
    fix = "give a head that was trained for this target"
    return (error("head-not-for-target", "drafter", f"{location}: {why}", fix),)


def _of_another_target(wanted: str, target: Target, catalog: Catalog) -> Iterator[Finding]:
    """An error when the catalogue knows this Hugging Face id as another target's head."""
    if not _HUB.fullmatch(wanted):
        return
    for other in catalog.targets.values():
        heads = {(drafter.weights or "").lower() for drafter in other.drafters}
        if other.id != target.id and wanted.lower() in heads:
            names = ", ".join(drafter.name for drafter in target.drafters)
            message = f"{wanted} was trained for {other.id}, not for {target.id}"
            fix = f"plan {other.short_name}, or a drafter of {target.short_name}: {names}"
            yield error("head-not-for-target", "drafter", message, fix)
            return
