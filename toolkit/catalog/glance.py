"""What a list says of targets, without reading all of their files.

A catalogue may have thousands of targets, and most of a file is of no interest to a list. So the
long parts are cut out of the text before it is parsed. Where what remains is not right, the whole
file is read, and what is wrong is told as everywhere; ``catalog check`` looks at everything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolkit.catalog.documents import parse_document
from toolkit.catalog.entry import Positive, ShortName, Version
from toolkit.catalog.loading import read_short_names, read_target, target_files
from toolkit.catalog.models import Target
from toolkit.catalog.places import shown
from toolkit.catalog.problems import BadFile, catalog_error

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
_LONG_OF_TARGET = re.compile(
    rf"^(?:{'|'.join(_OF_TARGET)}):.*\n(?:(?:[ \t}}\]#-].*)?\n)*", re.MULTILINE
)
_LONG_OF_DRAFTER = re.compile(
    rf"^( +)(?:{'|'.join(_OF_DRAFTER)}):.*\n(?:\1 .*\n|[ \t]*\n)*", re.MULTILINE
)
_FIRST_DRAFTER = re.compile(r"^drafters:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*( *)-", re.MULTILINE)


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
        document = parse_document(_without_long_parts(text), shown(path))
        found = TargetGlance.model_validate_json(json.dumps(document.data))
    except (OSError, ValueError, ValidationError, BadFile):
        return None
    names = [drafter.name for drafter in found.drafters]
    right = found.id == target_id and found.default_drafter in names
    return found if right and len(set(names)) == len(names) else None


def _without_long_parts(text: str) -> str:
    """The text without what a list does not need; raises ValueError where drafters are not
    written as blocks of lines, which is all that can be cut in."""
    text = _LONG_OF_TARGET.sub("", text)
    first = _FIRST_DRAFTER.search(text)
    if first is None or re.search(rf"^{first[1]}-(?! +[a-z_]+:)", text, re.MULTILINE):
        raise ValueError("drafters in braces")
    return _LONG_OF_DRAFTER.sub("", text)
