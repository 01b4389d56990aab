"""Looks up pairs, drafters and instance types."""

from __future__ import annotations

import os

from peagle.catalog.schema import DRAFTLESS, Catalog, Drafter, Pair, Target
from peagle.catalog.tables import Instance, InstanceTable
from peagle.errors import Fix, NotFound, UserError, close_matches, nearest
from peagle_serve.contract import HUB_ID, is_s3_uri

UNKNOWN_DRAFTER = "unknown-drafter"
"""The code of the error that a target has no such drafter."""


def find_pair(catalog: Catalog, name: str) -> Pair:
    """The pair ``TARGET[+DRAFTER]``; a bare target comes with its default drafter, if it has one.

    TARGET is a short name, or an id with or without its organization, DRAFTER a drafter's name or
    the id of its weights, both in any case. Raises NotFound with the nearest names, and
    CatalogError if the target's file is wrong.
    """
    target_name, plus, drafter_name = name.strip().partition("+")
    if not target_name or (plus and not drafter_name):
        raise UserError(
            f"{name!r} is not a pair", "write TARGET or TARGET+DRAFTER", code="not-a-pair"
        )
    target = _find_target(catalog, target_name)
    chosen = drafter_name or target.default_drafter
    return Pair(target=target, drafter=find_drafter(target, chosen) if chosen else None)


def find_drafter(target: Target, name: str) -> Drafter:
    """The drafter of ``target`` with this name or these weights; raises NotFound."""
    for drafter in target.drafters:
        if name.lower() in {drafter.name.lower(), (drafter.weights or "").lower()}:
            return drafter
    names = [drafter.name for drafter in target.drafters]
    hint = nearest(name, names) or f"its drafters: {', '.join(names)}"
    if not names:
        hint = "it has no drafters in the catalogue; plans take your own head with --drafter"
        if name.lower() in DRAFTLESS:
            hint = f"add it to the target: LOCATION+{name.lower()}"
    raise NotFound(f"{target.id} has no drafter {name!r}", hint, UNKNOWN_DRAFTER)


def find_instance(table: InstanceTable, name: str) -> Instance:
    """The instance type. Raises NotFound with the types of its family, else the nearest ones, else
    the families with GPUs."""
    for instance in table.instances:
        if instance.type == name:
            return instance
    types = [instance.type for instance in table.instances]
    family = [other for other in types if other.rpartition(".")[0] == name.rpartition(".")[0]]
    families = sorted({other.rpartition(".")[0] for other in types})
    hint = nearest(name, types) or f"families with GPUs: {', '.join(families)}"
    hint = f"available in this family: {', '.join(family)}" if family else hint
    close = close_matches(name, family or types)[:1]
    fix = Fix(hint, options=("--instance-type", *close) if close else ())
    raise NotFound(f"the catalogue has no GPU instance type {name!r}", fix, code="instance-unknown")


def pair_name(target: Target, drafter: Drafter | None) -> str:
    """The pair in full: ``openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE``.

    A drafter without weights on the Hub has its name there: ``peagle/tiny+p-eagle``.
    """
    if drafter is None:
        return target.id
    weights = drafter.weights
    on_hub = weights is not None and HUB_ID.fullmatch(weights)
    return f"{target.id}+{weights if on_hub else drafter.name}"


def _find_target(catalog: Catalog, name: str) -> Target:
    target_id = target_named(catalog, name)
    if target_id is not None:
        return catalog.targets[target_id]
    if is_s3_uri(name) or name.startswith(("/", "./", "../", "~")):
        command = ("peagle", "catalog", "init", name, "-o", "my-catalog")
        sentence = "add it to a catalogue of your own, with --drafter HEAD if you have one"
        message = f"{name!r} is a location, not a pair"
        raise UserError(message, Fix(sentence, command), code="not-a-pair")
    if name.endswith(".json"):
        sentence = "name a pair; the memory and the findings of a plan file are in the plan"
        fix = Fix(sentence, ("peagle", "plan", name, "--verbose"))
        raise NotFound(f"{name!r} is a plan file, not a pair", fix, code="not-a-pair")
    folder = f"for the folder write ./{name}; " if os.path.isdir(name) else ""
    ids = [*catalog.targets]
    names = [target.short_name for target in catalog.targets.values()]
    names += [target_id.partition("/")[2] for target_id in ids]
    hint = nearest(name, ids if "/" in name else names)
    sentence = f"{folder}{hint} for a target of your own use --catalog DIR; list all targets"
    fix = Fix(sentence.strip(), ("peagle", "catalog", "list"))
    raise NotFound(f"the catalogue has no target {name!r}", fix, code="unknown-target")


def same_sizes(target: Target, other: Target) -> bool:
    """Whether both have the same class and sizes, so that a head of one loads with the other."""
    keys = ("class_name", "hidden_size", "layers", "query_heads", "vocab_size", "intermediate_size")
    return all(getattr(target.architecture, k) == getattr(other.architecture, k) for k in keys)


def target_named(catalog: Catalog, name: str) -> str | None:
    """The id of the target with this id or short name, with this id without its organization, or
    with these weights, in any case; ``None`` if there is none.

    Raises UserError if several targets have that name or those weights.
    """
    lowered, targets = name.lower(), catalog.targets.items()
    for target_id, target in targets:
        if lowered in (target_id.lower(), target.short_name.lower()):
            return target_id
    target_ids = [
        target_id
        for target_id, target in targets
        if lowered == (target.weights if "/" in name else target_id.partition("/")[2]).lower()
    ]
    if len(target_ids) > 1:
        message = f"{name!r} is the name of several targets"
        raise UserError(message, f"write one of {', '.join(target_ids)}", code="several-targets")
    return target_ids[0] if target_ids else None
