"""Finds what the user named: a pair, a drafter, an instance type; else says what is near.

What a list says of targets, without reading all of their files.

A catalogue may have thousands of targets, and most of a file is of no interest to a list. So the
long parts are cut out of the text, and what remains is read here where it is as plain as in the
bundled files: a key and its value on each line. Where it is not, or is not right, the whole file is
read, and what is wrong is told as everywhere; ``catalog check`` looks at everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peagle.catalog.documents import catalog_error, plain_value
from peagle.catalog.loading import Targets, read_short_names, read_target, target_files
from peagle.catalog.schema import Catalog, Drafter, NamedDrafter, NamedTarget, Pair, Target
from peagle.catalog.tables import Instance, InstanceTable, Positive, ShortName, Version
from peagle.errors import NotFound, UserError, nearest


def find_pair(catalog: Catalog, name: str) -> Pair:
    """The pair ``TARGET[+DRAFTER]``; a bare target comes with its default drafter.

    TARGET is a short name or an id, DRAFTER a drafter's name or the id of its weights; neither
    cares for upper and lower case. Raises NotFound with the nearest names, and CatalogError when
    the target's file is wrong.
    """
    target_name, plus, drafter_name = name.strip().partition("+")
    if not target_name or (plus and not drafter_name):
        raise UserError(f"{name!r} is not a pair", "write TARGET or TARGET+DRAFTER")
    target = _find_target(catalog, target_name)
    return Pair(target=target, drafter=find_drafter(target, drafter_name or target.default_drafter))


def find_drafter(target: Target, name: str) -> Drafter:
    """The drafter of ``target`` with this name or these weights; raises NotFound."""
    wanted = name.lower()
    for drafter in target.drafters:
        if wanted in {drafter.name.lower(), (drafter.weights or "").lower()}:
            return drafter
    names = [drafter.name for drafter in target.drafters]
    hint = nearest(name, names) or f"it has {', '.join(names)}"
    raise NotFound(f"{target.id} has no drafter {name!r}", hint)


def find_instance(table: InstanceTable, name: str) -> Instance:
    """The instance type; raises NotFound with those of its family, else the nearest ones."""
    for instance in table.instances:
        if instance.type == name:
            return instance
    known = [instance.type for instance in table.instances]
    family = [other for other in known if other.rpartition(".")[0] == name.rpartition(".")[0]]
    hint = f"there are {', '.join(family)}" if family else nearest(name, known)
    raise NotFound(f"there is no instance type {name!r} with a GPU for endpoints", hint)


def pair_name(target: NamedTarget, drafter: NamedDrafter | None) -> str:
    """The pair in full: ``openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE``.

    A drafter without weights on the hub goes by its name: ``peagle/tiny+p-eagle``.
    """
    if drafter is None:
        return target.id
    weights = drafter.weights
    on_hub = weights is not None and not weights.startswith("./")
    return f"{target.id}+{weights if on_hub else drafter.name}"


def _find_target(catalog: Catalog, name: str) -> Target:
    short_names = _short_names(catalog)
    by_name = {target_id.lower(): target_id for target_id in catalog.targets}
    by_name |= {short.lower(): target_id for short, target_id in short_names.items()}
    if name.lower() not in by_name:
        hint = nearest(name, [*short_names, *catalog.targets])
        fix = f"{hint} see `peagle catalog list`; a target of your own: peagle --catalog DIR; what "
        fix = f"{fix}one takes: peagle fit --target PLACE".strip()
        raise NotFound(f"there is no target {name!r} in the catalogue", fix)
    return catalog.targets[by_name[name.lower()]]


def _short_names(catalog: Catalog) -> dict[str, str]:
    if isinstance(catalog.targets, Targets):
        return dict(catalog.targets.short_names)
    return {target.short_name: target.id for target in catalog.targets.values()}


_OF_TARGET = (
    "architecture", "default_max_model_len", "dtype", "engine_arguments", "environment", "gated",
    "parameters", "proof", "quantization", "revision", "source", "weight_bytes", "weight_patterns",
    "weights",
)  # fmt: skip
_OF_DRAFTER = (
    "acceptance_floor", "attention", "engine_arguments", "fallback", "format", "hidden_layers",
    "max_positions", "own_embeddings", "parameters", "problems", "published", "revision", "source",
    "speculative_settings", "use", "weight_bytes",
)  # fmt: skip
# A key, and the lines below it that are indented deeper, empty, or begin with a bracket or a dash.
# Each of these begins with the end of the line before, which is found much faster than a `^`.
_LONG_OF_TARGET = re.compile(rf"\n(?:{'|'.join(_OF_TARGET)}):.*(?:\n(?:[ \t}}\]#-].*|(?=\n|\Z)))*")
_LONG_OF_DRAFTER = re.compile(
    rf"\n( +)(?:{'|'.join(_OF_DRAFTER)}):.*(?:\n(?:\1 .*|[ \t]*(?=\n|\Z)))*"
)
_TEXT = r"[^\x00-\x1f\x7f-\x9f"  # to be closed: all but controls, and what follows
_LINE = re.compile(
    r"\n(?:( *)(- +)?([a-z_]+):"
    rf"(?: +(?:\"({_TEXT}\"\\]+)\" *|'({_TEXT}']+)' *|(?=[\w.~])({_TEXT}#]*)| *))?(?:(?<= )#.*)?"
    r"| *(?:#.*)?)(?=\n|\Z)"
)
"""A key and its value, quoted or plain; a comment; or nothing."""

_BREAKS = ("\x85", "\u2028", "\u2029")
"""What else begins a new line in YAML."""


class _Glance(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, from_attributes=True)


class DrafterGlance(_Glance):
    """A drafter, as far as a list tells of it; the fields are ``Drafter``'s."""

    name: ShortName
    title: str
    method: Annotated[str, Field(pattern=r"^(eagle3|mtp|dflash|dspark|ngram|suffix)$")]
    parallel_drafting: bool = False
    public: bool = True
    weights: str | None = None
    licence: str | None = None
    min_vllm: Version
    k_trained: Positive | None = None
    k_recommended: Positive


class TargetGlance(_Glance):
    """A target, as far as a list tells of it; the fields are ``Target``'s."""

    id: str
    short_name: ShortName
    title: str
    licence: str
    min_vllm: Version
    default_drafter: ShortName
    drafters: tuple[DrafterGlance, ...]


def glance_at_targets(own: Path | None = None) -> Iterator[TargetGlance]:
    """All targets of the bundled catalogue and of the folder ``own``, in the order of their ids.

    Raises CatalogError for a file that is wrong in what a list needs, and for two targets of one
    short name.
    """
    files = target_files(own)
    _, problems = read_short_names(files)
    if problems:
        raise catalog_error(problems)
    for target_id, path in files.items():
        yield _glance(path, target_id) or TargetGlance.model_validate(read_target(path))


def glance_of(target: Target) -> TargetGlance:
    """What a list tells of a target that was read."""
    return TargetGlance.model_validate(target)


def _glance(path: Path, target_id: str) -> TargetGlance | None:
    """``None`` when the whole file must be read."""
    try:
        text = path.read_bytes().decode("utf-8").replace("\r\n", "\n")
        found = TargetGlance.model_validate_json(json.dumps(_plain_lines(text)))
    except (OSError, ValueError, ValidationError):
        return None
    names = [drafter.name for drafter in found.drafters]
    right = found.id == target_id and found.default_drafter in names
    return found if right and len(set(names)) == len(names) else None


def _plain_lines(text: str) -> dict[str, Any]:
    """What a list needs of a target; raises ValueError where it is written in another way."""
    text = _LONG_OF_DRAFTER.sub("", _LONG_OF_TARGET.sub("", f"\n{text}"))
    lines = _LINE.findall(text)
    if len(lines) != text.count("\n") or any(mark in text for mark in _BREAKS):
        raise ValueError("some of it is not a key and its value on one line")
    target: dict[str, Any] = {}
    drafters: list[dict[str, Any]] = []
    margins: set[tuple[int, int]] = set()
    below = ""
    for indent, dash, key, *value in lines:
        if not key:
            continue
        column = len(indent) + len(dash)
        if column == 0:
            below = "" if any(value) else key
        elif dash:
            drafters.append({})
            margins.add((len(indent), column))
        if column and (below != "drafters" or [column] != [right for _, right in margins]):
            raise ValueError("it is indented in another way")
        into = drafters[-1] if column else target
        if key in into:
            raise ValueError("a key stands twice")
        into[key] = _value(*value)
    return {**target, "drafters": drafters}


def _value(double: str, single: str, plain: str) -> Any:
    text = plain.rstrip(" ")
    if ":" in text and (": " in text or text.endswith(":")):
        raise ValueError("a mapping in one line")
    return double or single or plain_value(text)
