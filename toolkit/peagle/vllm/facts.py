"""The settings that each vLLM version knows, from model_catalog/vllm.json.

``python -m tools.vllm_facts`` writes the file from vLLM's wheels: an item is a list of entries,
each with the range of versions (``vllm``) for which it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from peagle.data import data_folder
from peagle.vllm.versions import compare, in_range, parse
from peagle_serve import json_reader

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
