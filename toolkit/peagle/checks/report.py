"""``peagle check``: which checkpoints of a pair to read, and the findings of the rules."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from pydantic import Field

from peagle.case import Case, build_case
from peagle.catalog import find_drafter, find_pair, pair_name
from peagle.catalog.schema import DRAFTLESS, Catalog, Drafter, Pair, Target
from peagle.checkpoints import Checkpoint
from peagle.checkpoints.entries import drafter_from_checkpoint, is_from_checkpoint, own_drafter
from peagle.checkpoints.models import (
    ReadCheckpoint,
    is_folder,
    is_hub_id,
    is_location,
    location_fix,
    means_folder,
    split_revision,
)
from peagle.checks import registry
from peagle.checks.rules.head_pairing import head_not_for_target
from peagle.errors import NotFound, OptionsConflict, UserError
from peagle.findings import Finding, errors
from peagle.frozen import Result
from peagle.options import EngineOptions, check_numbers, engine_option

HUB = "hf"
"""As a location: the pair's own repository on the Hugging Face Hub."""


class CheckOptions(EngineOptions):
    """What to check. ``target`` and ``drafter`` are locations of weights, or ``hf``; ``drafter``
    may also be the name of a drafter. ``None`` leaves the choice to the catalogue."""

    TAKES = (
        "target", "drafter", "k", "max_model_len", "concurrency", "vllm", "instance_type",
        "tensor_parallel_size", "ami", "image", "region", "environment", "settings",
        "speculative_settings", "on_cpu",
    )  # fmt: skip

    settings: dict[str, str] = engine_option(
        "settings",
        "An argument of vLLM, such as enable-lora or gpu-memory-utilization=0.9.",
        default={},
        name="set engine",
    )
    speculative_settings: dict[str, object] = engine_option(
        "speculative",
        "A key of vLLM's --speculative-config that the pair does not set.",
        default={},
        name="speculative",
    )
    on_cpu: bool = engine_option(
        "switch", "Check for the CPU build of vLLM, as in the sandbox.", name="cpu"
    )


NOT_IN_SANDBOX = frozenset({"image-by-tag"})
"""Findings that do not concern the sandbox: it runs an engine of this machine, not AWS's image."""


class FilesRead(Result):
    """What was read of a model: headers of its weights too, if there are any."""

    location: str
    bytes: int
    has_weights: bool = Field(exclude=True)


class CheckReport(Result):
    """The findings, and what was read for them.

    ``unread`` are the parts of the pair, ``target`` or ``drafter``, of which only the catalogue's
    numbers are known; ``read_command`` is the command that reads them.
    """

    pair: str
    vllm: str
    rules: int
    read: tuple[FilesRead, ...]
    findings: tuple[Finding, ...]
    unread: tuple[str, ...] = Field(exclude=True)
    read_command: tuple[str, ...] = Field(exclude=True)

    def __repr__(self) -> str:
        findings = ", ".join(f"{finding.level} {finding.code}" for finding in self.findings)
        return f"<CheckReport {self.pair}: {self.rules} rules, {findings or 'nothing found'}>"


def check(options: CheckOptions, catalog: Catalog, read: ReadCheckpoint) -> CheckReport:
    """Read the checkpoints that the options name or that are on this machine; run all rules.

    ``read`` reads a location. Raises NotFound, UserError and what reading raises.
    """
    check_numbers(options)
    pair, location = _select_pair(catalog, options)
    if location not in (None, HUB) and not pair.target.drafters:
        pair = Pair(target=pair.target, drafter=drafter_from_checkpoint(read(str(location))))
    target, entry = pair.target, pair.drafter
    drafter = _served_drafter(pair, location)
    checkpoint = partial(_read_checkpoint, catalog, target, read)
    model = checkpoint(options.target, target)
    build = partial(
        build_case,
        catalog,
        target,
        drafter,
        own_target=options.target not in (None, HUB) or is_from_checkpoint(target),
        tensor_parallel_size=options.tensor_parallel_size,
        speculative_settings=options.speculative_settings,
        on_cpu=options.on_cpu,
    )
    case = build(options.model_copy(update={"target_checkpoint": model}))
    # The id of another target's head is enough: the head need not be read.
    other = registry.check(case, only={head_not_for_target.code})
    if entry is not None and not errors(other):
        read_head = {"drafter_checkpoint": checkpoint(location, entry)}
        case = build(case.options.model_copy(update=read_head))
    return _report(options.pair, case, model)


def _served_drafter(pair: Pair, location: str | None) -> Drafter | None:
    """The pair's drafter, or the user's own head at ``location``. Raises UserError where the pair
    drafts without a head."""
    target, entry = pair.target, pair.drafter
    if location is None:
        return entry
    if entry is None or entry.method in DRAFTLESS:
        how = f"{entry.name} drafts" if entry else f"{target.short_name} is served"
        raise UserError(
            f"{how} without a head, and --drafter {location} would not be used",
            "leave --drafter out, or use a pair that drafts with a head",
            code="drafts-without-head",
        )
    if location == HUB or split_revision(location)[0] == entry.weights:
        return entry
    return own_drafter(location, target, entry, None)


def _read_checkpoint(
    catalog: Catalog,
    target: Target,
    read: ReadCheckpoint,
    location: str | None,
    entry: Target | Drafter,
) -> Checkpoint | None:
    """The checkpoint there, else beside the catalogue's file; ``None``: not read."""
    if location not in (None, HUB):
        return read(location)
    if entry.weights and is_folder(entry.weights):
        folder = Path(catalog.origins[target.id]).parent / entry.weights
        return read(str(folder) if folder.is_absolute() else f"./{folder}")
    if location is None:
        return None
    if entry.weights is None:
        raise UserError(f"{entry.title} is not on the Hub", "use a folder or s3://", "not-on-hub")
    on_hub = entry.revision and is_hub_id(entry.weights)
    return read(f"{entry.weights}@{entry.revision}" if on_hub else entry.weights)


def _report(typed: str, case: Case, model: Checkpoint | None) -> CheckReport:
    """The findings of the case, what was read for it, and how to read the rest."""
    target, drafter, head = case.target, case.drafter, case.drafter_checkpoint
    title, places = pair_name(target, drafter), {}
    if drafter is not None and drafter not in target.drafters:  # the user's own
        revision = f"@{drafter.revision}" if drafter.revision else ""
        title = f"{target.id}+{drafter.weights}{revision}"
    if model is None:
        places["target"] = HUB
    if drafter is not None and head is None and (drafter.weights or not drafter.public):
        places["drafter"] = HUB if drafter.weights is not None else "LOCATION"
    words = [word for part, place in places.items() for word in (f"--{part}", place)]
    return CheckReport(
        pair=title,
        vllm=case.runtime.vllm,
        findings=registry.check(case),
        read=tuple(
            FilesRead(
                location=checkpoint.location,
                bytes=checkpoint.bytes_read,
                has_weights=checkpoint.tensors is not None,
            )
            for checkpoint in (model, head)
            if checkpoint is not None
        ),
        rules=len(registry.list_rules()),
        unread=tuple(places),
        read_command=("peagle", "check", typed, *words) if places else (),
    )


def _select_pair(catalog: Catalog, options: CheckOptions) -> tuple[Pair, str | None]:
    """The pair, and the location of the head, if the options name one."""
    pair, drafter = find_pair(catalog, options.pair), options.drafter
    if drafter is None or drafter == HUB or means_folder(drafter):
        return pair, drafter
    try:
        entry = find_drafter(pair.target, split_revision(drafter)[0])
    except NotFound as missing:
        if is_location(drafter):
            return pair, drafter
        fix = location_fix(drafter, "--drafter") or missing.remedy
        raise NotFound(missing.message, fix, missing.code) from missing
    if "+" in options.pair and pair.drafter != entry:
        raise OptionsConflict(
            f"{options.pair} and --drafter {drafter} specify different drafters", "specify only one"
        )
    # A Hub id also requests reading the checkpoint.
    return Pair(target=pair.target, drafter=entry), drafter if "/" in drafter else None
