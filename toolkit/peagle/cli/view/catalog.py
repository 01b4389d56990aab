"""Pairs of the catalogue, and changes to its tables, on stdout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from pydantic import BaseModel

from peagle.catalog.evidence import Evidence
from peagle.catalog.schema import Pair, kv_bytes
from peagle.catalog.tables import MethodSupport
from peagle.cli.context import command_text
from peagle.cli.view.console import print_document, print_documents, print_line, print_table

if TYPE_CHECKING:  # a list must not import boto3
    from peagle.aws.refresh import Change

_COLUMNS = ("", "pair", "method", "K", "vLLM", "licence", "evidence")
_TABLES = {
    "architecture", "drafters", "engine_arguments", "environment", "problems", "proof", "published",
    "title",
}  # fmt: skip
"""Parts of an entry with a table of their own."""


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

    def section(title: str, *entries: BaseModel, **more: Any) -> None:
        """The values that the file states."""
        values: dict[str, Any] = {}
        for entry in entries:
            values |= entry.model_dump(mode="json", exclude_defaults=True, exclude=_TABLES)
        print_document({**values, **more}, title)

    def table(title: str, entries: Sequence[BaseModel], keys: str) -> None:
        print_documents([entry.model_dump(mode="json") for entry in entries], keys.split(), title)

    shape, drafter = pair.target.architecture, pair.drafter
    cache = kv_bytes(shape.attention, pair.target.default_max_model_len)
    section(pair.target.title, pair.target, shape, kv_cache_bytes_at_default=cache)
    arguments = (*pair.target.engine_arguments, *pair.target.environment)
    if drafter is not None:
        arguments += drafter.engine_arguments
        section(drafter.title, drafter)
        if support is not None:
            section("In the default vLLM", support)
        keys = "file k acceptance_length vllm device date"
        table("Measured acceptance length", measured, keys)
        keys = "benchmark k acceptance_length source"
        table("Claimed acceptance length", drafter.published, keys)
        table("Known problems", drafter.problems, "level vllm summary fix source")
    table("Engine settings", arguments, "name value gpu_architectures vllm because")
    print_document({"prompts": pair.target.proof.prompts}, "Proof")
    print_table(_COLUMNS, _rows(target), title="All drafters")


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
    """The drafters; as evidence the acceptance length measured nearest to the recommended K."""
    for drafter in target["drafters"]:
        k, trained = drafter["k_recommended"], drafter["k_trained"]
        evidence = "unverified" if drafter["public"] else "not public"
        if drafter["public"] and drafter["evidence"]:
            near = min(drafter["evidence"], key=lambda item: abs(item["k"] - k))
            evidence = f"{near['acceptance_length']:.2f} at K={near['k']}"
        yield (
            "*" if drafter["name"] == target["default_drafter"] else "",
            f"{target['short_name']}+{drafter['name']}",
            drafter["kind"],
            f"{k} of {trained}" if trained else str(k),
            drafter["min_vllm"],
            drafter["licence"] or "-",
            evidence,
        )
