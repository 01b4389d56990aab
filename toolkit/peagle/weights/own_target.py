"""Models that the catalogue does not have: a target that joins the catalogue of the command, plans
with the user's own head, and a new entry, with what the checkpoints do not say."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peagle.case import build_case
from peagle.catalog.documents import Location, dotted
from peagle.catalog.find import UNKNOWN_DRAFTER, find_pair, target_named
from peagle.catalog.schema import DRAFTLESS, Catalog, Drafter, Target
from peagle.checkpoints.contents import files_below, hash_contents
from peagle.checkpoints.entries import (
    UNKNOWN_HEAD_K,
    count_parameters,
    drafter_from_checkpoint,
    parse_identity,
    shorten_name,
    target_from_checkpoint,
)
from peagle.checkpoints.heads import trained_k
from peagle.checkpoints.models import (
    Checkpoint,
    ReadCheckpoint,
    hub_snapshot,
    is_hub_id,
    is_location,
    location_fix,
    means_folder,
    s3_prefix,
    split_revision,
)
from peagle.checks import check
from peagle.data import weights_folder
from peagle.errors import Fix, NotFound, UserError, nearest
from peagle.findings import Finding
from peagle.fit.building import located, read_target
from peagle.fit.weights import checkpoint_bytes
from peagle.options import Options
from peagle.planning.plan import Plan
from peagle.planning.planner import make_plan
from peagle.planning.weights import local_weights, with_contents
from peagle.vllm.defaults import method_id, method_title
from peagle.weights.layout import AwsOf, own_head
from peagle_serve.contract import is_s3_uri
from peagle_serve.heads import is_head

SEQUENTIAL_K = 3
"""K of an EAGLE-3 head of which only the checkpoint is known: the best in most measurements."""


def with_own_target(
    catalog: Catalog, pair: str, read: ReadCheckpoint
) -> tuple[Catalog, Checkpoint | None]:
    """``catalog`` with the target of ``pair``, under its id and the location as typed, and the
    checkpoint that ``read`` gives, if ``pair`` is a location instead of a name. Raises UserError
    for a draft head."""
    if not is_own_target(catalog, pair):
        return catalog, None
    location, method = split_draftless(pair)
    folder, plus, name = location.rpartition("+")
    if plus and not os.path.exists(os.path.expanduser(location)) and means_folder(folder):
        raise UserError(
            f"{folder} is not in the catalogue, so that the drafter {name!r} is unknown",
            f"write {folder}+ngram, or {folder} with --drafter HEAD",
            code=UNKNOWN_DRAFTER,
        )
    is_folder = means_folder(location)
    # An absolute path: the plan is independent of the working directory.
    path = str(Path(location).expanduser().resolve()) if is_folder else location
    checkpoint = read(path)
    if is_folder:
        checkpoint = replace(checkpoint, location=path)
        if checkpoint.tensors is None and checkpoint.other_weights:
            message = f"{location} has weights only as {', '.join(checkpoint.other_weights[:2])}"
            fix = "convert them to safetensors first"
            raise UserError(message, fix, "weights-not-safetensors")
    refuse_head(location, checkpoint)
    target = estimate_entry(checkpoint)
    if method is not None:
        # It is the same for every target.
        every = (each for other in catalog.targets.values() for each in other.drafters)
        drafters = tuple(each for each in every if each.method == method)[:1]
        if not drafters:
            message = f"no target of the catalogue has the drafter {method}"
            raise NotFound(message, "use the bundled catalogue", code=UNKNOWN_DRAFTER)
        target = target.model_copy(update={"drafters": drafters})
    added = {target.id: target, location: target}
    targets = ChainMap(added, catalog.targets)  # type: ignore[arg-type]
    origins = {**catalog.origins, target.id: checkpoint.location}
    return replace(catalog, targets=targets, origins=origins), checkpoint


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


def is_own_target(catalog: Catalog, pair: str) -> bool:
    """Whether this is the location of a target that the catalogue does not have, or only since it
    was read, also with a method that drafts without a head: ``./llama+ngram``."""
    location, _ = split_draftless(pair)
    if not is_location(location) and not means_folder(location):
        return False
    target_id = target_named(catalog, split_revision(location)[0])
    return target_id is None or not catalog.origins[catalog.targets[target_id].id].endswith(".yaml")


def is_on_hub(location: str) -> bool:
    """Whether a location, also with a method that drafts without a head, is on the Hub."""
    location, _ = split_draftless(location)
    return is_hub_id(location) and not means_folder(location)


def estimate_entry(checkpoint: Checkpoint) -> Target:
    """The target in a checkpoint; without headers, the size of its weights is estimated. Raises
    CheckpointError."""
    with located(checkpoint):
        target, model = target_from_checkpoint(checkpoint), read_target(checkpoint)
    if checkpoint.tensors:
        return target
    return target.model_copy(update={"weight_bytes": checkpoint_bytes(model)})


def target_not_read(
    location: str, command: tuple[str, ...], catalog: Catalog | None = None
) -> NotFound:
    """The error that nothing is read from ``location`` here; ``command`` is one that does."""
    if is_s3_uri(location):
        s3_prefix(location)
    where = "S3" if is_s3_uri(location) else "the Hub"
    near = nearest(location, catalog.targets) if catalog and not is_s3_uri(location) else ""
    sentence = f"{near} to read it from {where}".strip()
    message = f"the catalogue has no target {location!r}"
    return NotFound(message, Fix(sentence, command), code="unknown-target")


@dataclass(frozen=True)
class NewEntry:
    """The entry, and why some of its values are not known or left out."""

    target: Target
    unknown: Mapping[Location, str]

    @property
    def reasons(self) -> dict[str, str]:
        """``unknown`` by keys such as ``drafters[0].licence``."""
        return {dotted(key): why for key, why in self.unknown.items()}


def entry_file(location: str, output: Path | None) -> Path:
    """Where the entry of the model at ``location`` is written: ``output``, and below it if that is
    a folder; without it ``ORGANIZATION/MODEL.yaml``. Raises UserError for another kind of file."""
    name = Path(f"{parse_identity(location)[0]}.yaml")
    if output is None:
        return name
    if output.is_dir() or output.suffix == "":
        return output / name
    if output.suffix != ".yaml":
        raise UserError(f"{output} is not a .yaml file", f"write {output.with_suffix('.yaml')}")
    return output


def new_entry(model: Checkpoint, head: Checkpoint | None, file: Path, vllm: str) -> NewEntry:
    """The entry for ``model`` with ``head``, for the catalogue file ``file``; ``vllm`` is written
    as the oldest version. Raises UserError if ``model`` is a head or ``head`` is none."""
    refuse_head(model.location, model)
    if head is not None and not is_head(head.config):
        raise UserError(
            f"{head.location} holds no EAGLE-3 or P-EAGLE head",
            "use a draft head",
            code="head-not-a-drafter",
        )
    target_id = f"{file.absolute().parent.name}/{file.stem}"
    read = estimate_entry(model)
    target = read.model_copy(
        update={
            "id": target_id,
            "short_name": shorten_name(target_id),
            "title": file.stem,
            "weights": _name_weights(model.location, file),
            "licence": "unknown",
            "min_vllm": vllm,
            "parameters": count_parameters(model) or max(1, read.weight_bytes // 2),
            "source": f"config.json and weight headers of {parse_identity(model.location)[0]}",
        }
    )
    unknown = _explain_unknown(model, target)
    if head is None:
        unknown["drafters",] = "no head was read; plans use no speculation"
        return NewEntry(target, unknown)
    drafter, unknown_of_head = _drafter(head, target, file, vllm)
    update = {"default_drafter": drafter.name, "drafters": (drafter,)}
    return NewEntry(target.model_copy(update=update), unknown | unknown_of_head)


def _name_weights(location: str, file: Path) -> str:
    """How a catalogue file names weights: an id on the Hub, ``s3://``, or a folder, which is
    relative to the file if it is next to it."""
    name = hub_snapshot(location) or location
    if not means_folder(name):
        return split_revision(name)[0]
    folder = Path(name).expanduser().resolve()
    beside = os.path.relpath(folder, file.absolute().parent)
    return str(folder) if beside.startswith("..") else f"./{beside}"


_LICENCE = "a checkpoint does not state it; see the model card"
_NO_COMMIT = "the commit, so the downloaded files may change"
_ESTIMATED = "no weight header was read; estimated from config.json"


def _explain_unknown(model: Checkpoint, target: Target) -> dict[Location, str]:
    """Why values of the target are not known."""
    longest = target.architecture.max_positions
    unknown: dict[Location, str] = {
        ("licence",): _LICENCE,
        ("min_vllm",): "the oldest version that supports it; this is the catalogue's default",
        ("default_max_model_len",): f"the context that it is good for; at most {longest:,}",
        ("engine_arguments",): "the settings of its model card, such as the parsers of tool calls "
        "and reasoning",
    }
    if target.revision == "main" and is_hub_id(target.weights):
        unknown["revision",] = _NO_COMMIT
    if not model.tensors:
        unknown["weight_bytes",] = _ESTIMATED
    if count_parameters(model) is None:
        unknown["parameters",] = "no weight header was read; as if each had 16 bits"
    return unknown


def _drafter(
    head: Checkpoint, target: Target, file: Path, vllm: str
) -> tuple[Drafter, dict[Location, str]]:
    """The drafter, and what is not known of it or left out, by key of the entry."""
    read = drafter_from_checkpoint(head)
    weights = _name_weights(head.location, file)
    trained = trained_k(head.config)
    usual = UNKNOWN_HEAD_K if read.parallel_drafting else SEQUENTIAL_K
    kind = method_title(read.method, read.parallel_drafting)
    unknown = {
        "licence": _LICENCE,
        "min_vllm": "the oldest version that runs it; this is the catalogue's default",
        "k_recommended": "no measurement or model card was read; a bench measures it",
        "acceptance_floor": "the acceptance length that deploy must measure",
        "published": "acceptance lengths that its authors claim",
    }
    if read.revision is None and is_hub_id(weights):
        unknown["revision"] = _NO_COMMIT
    if not head.tensors and read.weight_bytes:
        unknown["weight_bytes"] = _ESTIMATED
    if trained is None:
        unknown["k_trained"] = "the largest K that it was trained for"
    tensors = head.tensors or {}
    drafter = read.model_copy(
        update={
            "name": method_id(read.method, read.parallel_drafting),
            "title": f"{kind} head for {target.title}",
            "weights": weights,
            "revision": read.revision or "main",
            "licence": "unknown",
            "min_vllm": vllm,
            "k_trained": trained,
            "k_recommended": min(usual, trained or usual),
            "own_embeddings": any("embed_tokens" in n for n in tensors) if tensors else None,
            "source": f"config.json and weight headers of {parse_identity(head.location)[0]}",
        }
    )
    return drafter, {("drafters", 0, key): why for key, why in unknown.items()}


def entry_findings(
    entry: NewEntry, model: Checkpoint, head: Checkpoint | None, catalog: Catalog
) -> tuple[Finding, ...]:
    """What the rules find in the two checkpoints, as a pair."""
    drafter = next(iter(entry.target.drafters), None)
    read = Options(pair=entry.target.id, target_checkpoint=model, drafter_checkpoint=head)
    return check(build_case(catalog, entry.target, drafter, read), about="head")


def head_reader(catalog: Catalog, pair: str, aws_of: AwsOf) -> AwsOf | None:
    """How ``plan_pair`` reads the user's own head; ``None`` where its kind can be assumed from the
    target's other drafters. Raises NotFound for an unknown pair."""
    return None if find_pair(catalog, pair).target.drafters else aws_of


def plan_pair(
    pair: str,
    fields: Mapping[str, Any],
    catalog: Catalog,
    aws_of: AwsOf | None = None,
    verdict: Path | None = None,
) -> Plan:
    """The plan for that pair and those fields of Options; drafter and K from the file ``verdict``,
    if there is one.

    With ``aws_of`` the user's own head is read from any location, else only from a folder. Raises
    NotFound and UserError for what the catalogue, the head or the verdict does not have.
    """
    fields = dict(fields)
    if "drafter" in fields:
        fields |= own_head(fields["drafter"], aws_of)
        if aws_of and is_s3_uri(fields["drafter"]):
            from peagle.weights.bucket import copied_pair  # imports boto3

            of_head = copied_pair(aws_of(), fields["drafter"])
            fields["drafter_checkpoint"] = replace(fields["drafter_checkpoint"], pair=of_head)
    options = Options(pair=pair, **fields)
    try:
        if verdict is not None:  # most plans have none, and its models take 20 ms to import
            from peagle.planning.by_verdict import plan_by_verdict
            from peagle.render.verdict_file import read_verdict

            plan = plan_by_verdict(options, read_verdict(verdict), verdict, catalog)
        else:
            plan = make_plan(options, catalog)
    except NotFound as error:
        fix = None
        if error.code == UNKNOWN_DRAFTER:
            fix = location_fix(options.drafter or "", "--drafter")
        raise NotFound(error.message, fix or error.remedy, error.code) from None
    # With the hash of its folders of weights, equal files are at one prefix, whichever machine
    # plans and whatever was deployed before. Deploy reports a missing folder.
    folders = [weights_folder(weights.location) for weights in local_weights(plan)]
    if not folders or not all(folder.is_dir() for folder in folders):
        return plan
    return with_contents(plan, hash_contents(map(files_below, folders)))
