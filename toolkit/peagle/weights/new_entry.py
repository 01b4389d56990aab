"""A catalogue entry for a model and its head: what their checkpoints say, and what they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from peagle.case import NO_OPTIONS, Checkpoints, build_case
from peagle.catalog.documents import Location, dotted
from peagle.catalog.schema import Catalog, Drafter, Target
from peagle.checkpoints.architecture import read_dtype, read_quantization
from peagle.checkpoints.entries import (
    UNKNOWN_HEAD_K,
    count_parameters,
    drafter_from_checkpoint,
    identity_of,
    short_name_of,
)
from peagle.checkpoints.heads import trained_k
from peagle.checkpoints.models import Checkpoint, is_hub_id, means_folder, split_revision
from peagle.checks import check
from peagle.errors import UserError
from peagle.findings import Finding
from peagle.vllm.defaults import method_id, method_title
from peagle.weights.own_target import entry_of, refuse_head
from peagle_serve.heads import is_head

SEQUENTIAL_K = 3
"""K of an EAGLE-3 head of which only the checkpoint is known: the best in most measurements."""

_DRAFTER = ("drafters", 0)


@dataclass(frozen=True)
class NewEntry:
    """The entry, why some of its values are not known, and which keys are left out and why."""

    target: Target
    unknown: Mapping[Location, str]
    missing: Mapping[Location, str]

    @property
    def reasons(self) -> dict[str, str]:
        """Why what is unknown is not known, by keys such as ``drafters[0].licence``."""
        return {dotted(key): why for key, why in {**self.unknown, **self.missing}.items()}


def entry_file(location: str, output: Path | None) -> Path:
    """Where the entry of the model at ``location`` is written: ``output``, and below it if that is
    a folder; without it ``ORGANIZATION/MODEL.yaml``. Raises UserError for another kind of file."""
    name = Path(f"{identity_of(location)[0]}.yaml")
    if output is None:
        return name
    if output.is_dir() or output.suffix == "":
        return output / name
    if output.suffix != ".yaml":
        raise UserError(f"{output} is not a .yaml file", f"write {output.with_suffix('.yaml')}")
    return output


def new_entry(model: Checkpoint, head: Checkpoint | None, file: Path, vllm: str) -> NewEntry:
    """The entry for ``model`` with ``head``, for the catalogue file ``file``.

    ``vllm`` is the version to write as the oldest. Raises UserError if ``model`` is a head or
    ``head`` is none, and CheckpointError.
    """
    refuse_head(model.location, model)
    if head is not None and not is_head(head.config):
        raise UserError(
            f"{head.location} holds no EAGLE-3 or P-EAGLE head",
            "use a draft head",
            code="head-not-a-drafter",
        )
    target_id = f"{file.absolute().parent.name}/{file.stem}"
    weights, guessed = _weights(model.location, file, target_id)
    read = entry_of(model)
    target = read.model_copy(
        update={
            "id": target_id,
            "short_name": short_name_of(target_id),
            "title": file.stem,
            "weights": weights,
            "licence": "unknown",
            "min_vllm": vllm,
            "parameters": count_parameters(model) or max(1, read.weight_bytes // 2),
            "source": f"config.json and weight headers of {identity_of(model.location)[0]}",
        }
    )
    unknown = dict(_of_target(model, target, guessed))
    missing: dict[Location, str] = {
        ("engine_arguments",): "engine_arguments, the settings of its model card, such as the "
        "parsers of tool calls and reasoning"
    }
    if head is None:
        without = {("drafters",): "default_drafter and drafters; plans use no speculation"}
        return NewEntry(target, unknown, missing | without)
    drafter, unknown_of_head, missing_of_head = _drafter(head, target, file, vllm)
    return NewEntry(
        target.model_copy(update={"default_drafter": drafter.name, "drafters": (drafter,)}),
        unknown | unknown_of_head,
        missing | missing_of_head,
    )


def _weights(location: str, file: Path, guess: str) -> tuple[str, bool]:
    """How a catalogue file names weights, and whether that is a guess: an id on the Hub, or a
    folder next to the file."""
    name = split_revision(location)[0]
    if is_hub_id(location) and not means_folder(location):
        return name, False
    if means_folder(location):
        beside = os.path.relpath(Path(location).expanduser().resolve(), file.absolute().parent)
        if not beside.startswith(".."):
            return f"./{beside}", False
    return guess, True


def _of_target(model: Checkpoint, target: Target, guessed: bool) -> Iterator[tuple[Location, str]]:
    """Why values of the target are not known."""
    yield ("licence",), "a checkpoint does not state it; see the model card"
    yield ("min_vllm",), "the oldest version that supports it; this is the catalogue's default"
    if guessed:
        yield ("weights",), f"its id on the Hub; these are the values of {model.location}"
    if target.revision == "main" and not target.weights.startswith("./"):
        yield ("revision",), "the commit, so the downloaded files may change"
    if not model.tensors:
        yield ("weight_bytes",), "no weight header was read; estimated from config.json"
    if count_parameters(model) is None:
        yield ("parameters",), "no weight header was read; as if each had 16 bits"
    if read_dtype(model.config) is None:
        yield ("dtype",), "config.json does not state it"
    kind = read_quantization(model.config)
    if kind is not None and target.quantization is None:
        yield (
            ("weight_bytes",),
            f"what vLLM makes of weights quantized with {kind}; this is their size as stored",
        )
    longest = target.architecture.max_positions
    yield ("default_max_model_len",), f"the context that it is good for; at most {longest:,}"
    if not model.tokenizer:
        yield ("proof", "chat"), "whether it has a chat template; no tokenizer was read"


def _drafter(
    head: Checkpoint, target: Target, file: Path, vllm: str
) -> tuple[Drafter, dict[Location, str], dict[Location, str]]:
    """The drafter, what is not known of it, and which keys are left out, by key of the entry."""
    read = drafter_from_checkpoint(head)
    name = method_id(read.method, read.parallel_drafting)
    organization = target.id.partition("/")[0]
    head_name = identity_of(head.location)[0].partition("/")[2]
    weights, guessed = _weights(head.location, file, f"{organization}/{head_name}")
    trained = trained_k(head.config)
    usual = UNKNOWN_HEAD_K if read.parallel_drafting else SEQUENTIAL_K
    kind = method_title(read.method, read.parallel_drafting)
    unknown = {
        "licence": "a checkpoint does not state it; see the model card",
        "min_vllm": "the oldest version that runs it; this is the catalogue's default",
        "k_recommended": "no measurement or model card was read; a bench measures it",
    }
    if guessed:
        unknown["weights"] = f"its id on the Hub; these are the values of {head.location}"
    if read.revision is None and not weights.startswith("./"):
        unknown["revision"] = "the commit, so the downloaded files may change"
    if not head.tensors and read.weight_bytes:
        unknown["weight_bytes"] = "no weight header was read; estimated from config.json"
    missing = {
        "acceptance_floor": "acceptance_floor, the acceptance length that deploy must measure",
        "published": "published, acceptance lengths that its authors claim",
    }
    if trained is None:
        missing["k_trained"] = "k_trained, the largest K that it was trained for"
    tensors = head.tensors or {}
    drafter = read.model_copy(
        update={
            "name": name,
            "title": f"{kind} head for {target.title}",
            "weights": weights,
            "revision": read.revision or "main",
            "licence": "unknown",
            "min_vllm": vllm,
            "k_trained": trained,
            "k_recommended": min(usual, trained or usual),
            "own_embeddings": any("embed_tokens" in n for n in tensors) if tensors else None,
            "source": f"config.json and weight headers of {identity_of(head.location)[0]}",
        }
    )
    return (
        drafter,
        {(*_DRAFTER, key): why for key, why in unknown.items()},
        {(*_DRAFTER, key): why for key, why in missing.items()},
    )


def entry_findings(
    entry: NewEntry, model: Checkpoint, head: Checkpoint | None, catalog: Catalog
) -> tuple[Finding, ...]:
    """What the rules find in the two checkpoints, as a pair."""
    drafter = next(iter(entry.target.drafters), None)
    read = Checkpoints(model, head, own_target=True)
    return check(build_case(catalog, entry.target, drafter, NO_OPTIONS, read), about="head")
