"""The user's own head as a drafter: what its config says, and else what such heads are like."""

from __future__ import annotations

import re

from toolkit.catalog.models import Catalog, Drafter, Target
from toolkit.checkpoints import Checkpoint
from toolkit.checkpoints.heads import read_head, weight_bytes
from toolkit.checks import check, make_case
from toolkit.checks.strangers import stranger
from toolkit.findings import Finding, note
from toolkit.planning.choice import Choice
from toolkit.planning.models import Options

OWN = "own"
"""The name of a head that is not in the catalogue."""

NOT_READ = "head-not-read"
"""The finding that nobody has looked into the head."""

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

    ``options`` hold the head's checkpoint when somebody has read it; what is no head, or does
    not belong to the target, is a finding. When ``kind`` is not public, the head is taken for that
    very head.
    """
    wanted, revision = split_revision(location)
    strangers = _of_another_target(wanted, target, catalog)
    own = {
        "title": f"your own head {location}",
        "public": True,
        "weights": wanted,
        "revision": revision,
        "licence": None,
        "fallback": None,
    }
    unknown = {} if not kind.public else {"name": OWN, "k_trained": None, "published": ()}
    read = options.drafter_checkpoint
    if read is None:
        drafter = kind.model_copy(update=own | unknown)
        return Choice(_sourced(drafter, kind), findings=(*strangers, _not_read(location, kind)))
    head = read_head(read.config)
    if head.parallel_drafting != kind.parallel_drafting:
        unknown = {"name": OWN, "k_trained": None, "published": ()}
        kind = _like(head.parallel_drafting, kind, target)
    said = {
        "parallel_drafting": head.parallel_drafting,
        "format": "speculators" if head.speculators_format else "vllm",
        "hidden_layers": head.layers,
        "weight_bytes": _bytes_of(read) or weight_bytes(head) or kind.weight_bytes,
        "max_positions": head.max_positions,
        "attention": head.attention or kind.attention,
    }
    drafter = _sourced(kind.model_copy(update=own | unknown | said), kind)
    case = make_case(catalog, target, drafter, vllm=options.vllm, drafter_checkpoint=read)
    return Choice(drafter, findings=(*strangers, *check(case, about="head")))


def _bytes_of(read: Checkpoint) -> int:
    """Bytes of the tensors whose headers were read."""
    return sum(tensor.size for tensor in (read.tensors or {}).values())


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
    fix = "`peagle plan` with --online reads and checks it; or give the head as a folder"
    return note(NOT_READ, "drafter", message, fix)


def _of_another_target(wanted: str, target: Target, catalog: Catalog) -> tuple[Finding, ...]:
    """An error when the catalogue knows this Hugging Face id as another target's head."""
    found = stranger(wanted, target, catalog) if _HUB.fullmatch(wanted) else None
    return (found,) if found else ()
