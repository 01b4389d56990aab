"""vLLM versions: ``0.28.0``, or ``0.28`` which means ``0.28.0``; and ranges of them.

A range is a list of comparisons that must all hold: ``>=0.18.0,<0.22.0``. The settings that each
version knows are in model_catalog/vllm.json, which ``python -m tools.vllm_facts`` writes from
vLLM's wheels: an item is a list of entries with the range of versions for which each holds.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from peagle.data import data_folder
from peagle.errors import UserError
from peagle_serve import json_reader

Parsed = tuple[int, int, int]

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?", re.ASCII)
_COMPARISON = re.compile(r"(>=|<=|==|<|>)(.*)", re.DOTALL)
_OPERATORS: dict[str, Callable[[Parsed, Parsed], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


@lru_cache
def parse(version: str) -> Parsed:
    """The three numbers of a version; raises UserError when it is not one."""
    match = _VERSION.fullmatch(version)
    if not match:
        raise UserError(
            f"{version!r} is not a vLLM version", "write it like 0.28.0", code="invalid-version"
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


@lru_cache
def normalize(version: str) -> str:
    """The version with all three numbers: ``0.28`` becomes ``0.28.0``."""
    return ".".join(str(number) for number in parse(version))


def compare(left: str, right: str) -> int:
    """-1 when ``left`` is the older version, 0 when they are the same, 1 when it is the newer."""
    a, b = parse(left), parse(right)
    return (a > b) - (a < b)


@lru_cache(maxsize=4096)
def in_range(version: str, versions: str) -> bool:
    """Whether every comparison of the range ``versions`` holds for ``version``.

    Raises UserError when either of them is malformed.
    """
    number, holds = parse(version), True
    for comparison in versions.split(","):
        match = _COMPARISON.fullmatch(comparison)
        if not match:
            raise UserError(
                f"{comparison!r} is not a comparison of versions",
                "write it like >=0.18.0,<0.22.0",
                code="invalid-version",
            )
        holds &= _OPERATORS[match[1]](number, parse(match[2]))
    return holds


FILE = "vllm.json"
SECTIONS = (
    "arguments",
    "aliases",
    "deprecated",
    "variables",
    "speculative_keys",
    "speculative_methods",
    "rejection_sample_methods",
)

SWITCH, ON_ONLY, CHOICE = "switch", "switch on only", "choice"
WHOLE_NUMBER, NUMBER, EITHER = "whole number", "number", "switch or value"
"""Values of ``kind`` of an argument; the others take any text."""

Section = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class EngineFacts:
    """What the vLLM version ``version`` knows, each section by the item's name.

    ``exact``: the file has a version of the same minor version as the one that was asked for.
    ``arguments`` are without dashes and without the ``no-`` of switches; aliases are among them.
    """

    version: str
    exact: bool
    arguments: Section
    deprecated: Section
    variables: Section
    speculative_keys: Section
    speculative_methods: Section
    rejection_sample_methods: Section


@cache
def find_facts(vllm: str) -> EngineFacts:
    """The facts of this version, else of the newest one before it, else of the oldest.

    Raises UserError for a malformed version.
    """
    table = _read(FILE)
    versions = sorted(table["versions"], key=parse)
    version = ([release for release in versions if compare(release, vllm) <= 0] or versions[:1])[-1]
    sections: dict[str, dict[str, dict[str, Any]]] = {
        section: {
            item: entry
            for item, entries in table[section].items()
            for entry in entries
            if in_range(version, entry.get("vllm", ">=0.0"))
        }
        for section in SECTIONS
    }
    for alias, entry in sections.pop("aliases").items():
        sections["arguments"][alias] = sections["arguments"][entry["is"].removeprefix("no-")]
    return EngineFacts(version, parse(version)[:2] == parse(vllm)[:2], **sections)


def canonical_name(argument: str) -> str:
    """The name of the argument that every version has, of an alias of some: of
    ``device-memory-utilization`` it is ``gpu-memory-utilization``."""
    entries = _read(FILE)["aliases"].get(argument)
    return str(entries[0]["is"]) if entries else argument


def first_version(section: str, item: str, vllm: str) -> str:
    """The first version after ``vllm`` that has the item; empty if none is known."""
    table = _read(FILE)
    entries = [*table[section].get(item, ())]
    entries += table["aliases"].get(item, ()) if section == "arguments" else ()
    for version in sorted(table["versions"], key=parse):
        later = compare(version, vllm) > 0
        if later and any(in_range(version, entry.get("vllm", ">=0.0")) for entry in entries):
            return str(version)
    return ""


def architectures() -> dict[str, Any]:
    """``defaults`` of config classes by model type, ``decoders``: the model type of the decoder of
    larger models, and ``not_served``: classes with the last version that served them, if any.

    ``tools/model_defaults.py`` writes the file from vLLM and transformers.
    """
    return _read("architectures.json")


@cache
def _read(name: str) -> dict[str, Any]:
    text = (data_folder("model_catalog") / name).read_text(encoding="utf-8")
    table: dict[str, Any] = json_reader.read(text, name)
    return table
