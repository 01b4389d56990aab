"""Prints the catalogue and the changes of a refresh as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from peagle.catalog.evidence import Evidence
from peagle.catalog.schema import Pair, kv_bytes
from peagle.catalog.tables import MethodSupport
from peagle.cli.context import command_text
from peagle.cli.view.console import (
    document_facts,
    print_documents,
    print_line,
    print_section,
    print_table,
)

if TYPE_CHECKING:  # a list must not import boto3
    from peagle.aws.refresh import Change

_COLUMNS = ("", "pair", "method", "K", "vLLM", "licence", "evidence")
_LABEL = 26
_TABLES = {
    "architecture", "drafters", "engine_arguments", "environment", "problems", "proof", "published",
    "title",
}  # fmt: skip


def print_list(targets: list[dict[str, Any]]) -> None:
    """One block per target, one line per drafter; ``*`` marks the default."""
    for target in targets:
        none = "" if target["drafters"] else ", no drafters"
        needs = f"vLLM {target['min_vllm']} or later, {target['licence']}{none}"
        print_line(f"{click.style(target['id'], bold=True)}  {needs}")
        if target["drafters"]:
            print_table(_COLUMNS, _rows(target))
    print_line(
        "* marks the default. K: recommended tokens per step, of the trained number. -: unknown."
    )
    print_line("Details of a pair", command_text(("peagle", "catalog", "show", "PAIR")))


def print_pair(
    pair: Pair,
    measured: tuple[Evidence, ...],
    target: dict[str, Any],
    support: MethodSupport | None,
) -> None:
    """Everything about a pair; ``support`` is what the default vLLM does with its method."""
    shape = pair.target.architecture
    cache = kv_bytes(shape.attention, pair.target.default_max_model_len)
    settings = {**_dump(pair.target), **_dump(shape), "kv_cache_bytes_at_default": cache}
    print_section(pair.target.title, document_facts(settings), _LABEL)
    arguments, environment = pair.target.engine_arguments, pair.target.environment
    if drafter := pair.drafter:
        arguments += drafter.engine_arguments
        print_section(drafter.title, document_facts(_dump(drafter)), _LABEL)
        if support is not None:
            print_section("In the default vLLM", document_facts(_dump(support)), _LABEL)
        for title, entries, keys in (
            ("Measured acceptance length", measured, "file k acceptance_length vllm device date"),
            (
                "Claimed acceptance length",
                drafter.published,
                "benchmark k acceptance_length source",
            ),
            ("Known problems", drafter.problems, "level vllm summary fix source"),
        ):
            print_documents(list(map(_json, entries)), keys.split(), title)
    keys = "name value gpu_architectures vllm because"
    print_documents(list(map(_json, (*arguments, *environment))), keys.split(), "Engine settings")
    print_section("Proof", enumerate(pair.target.proof.prompts, start=1))
    print_table(_COLUMNS, _rows(target), title="All drafters")


def _json(entry: BaseModel) -> dict[str, Any]:
    return entry.model_dump(mode="json")


def _dump(entry: BaseModel) -> dict[str, Any]:
    """The values of an entry that the file states, without the parts that are tables."""
    return entry.model_dump(mode="json", exclude_defaults=True, exclude=_TABLES)


def print_changes(changes: Sequence[Change]) -> None:
    """One line per change; prices that AWS confirms are only counted."""
    for file in dict.fromkeys(change.file for change in changes):
        here = [change for change in changes if change.file == file]
        new = [change for change in here if not change.confirmed]
        rows = ((change.entry, change.key, change.before or "", change.after) for change in new)
        print_table(("entry", "key", "before", "after"), rows, title=file)
        if confirmed := len(here) - len(new):
            print_line(f"{file}: {confirmed} prices are unchanged and get today's date")


def _rows(target: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for drafter in target["drafters"]:
        trained = f" of {drafter['k_trained']}" if drafter["k_trained"] else ""
        yield (
            "*" if drafter["name"] == target["default_drafter"] else "",
            f"{target['short_name']}+{drafter['name']}",
            drafter["kind"],
            f"{drafter['k_recommended']}{trained}",
            drafter["min_vllm"],
            drafter["licence"] or "-",
            _evidence(drafter) if drafter["public"] else "not public",
        )


def _evidence(drafter: dict[str, Any]) -> str:
    """The acceptance length measured nearest to the recommended K."""
    if not drafter["evidence"]:
        return "unverified"
    near = min(drafter["evidence"], key=lambda item: abs(item["k"] - drafter["k_recommended"]))
    return f"{near['acceptance_length']:.2f} at K={near['k']}"
