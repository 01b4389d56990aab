"""Numbers that ``peagle fit`` is given, and options of it that contradict each other."""

from __future__ import annotations

import math
from typing import Any

import click

from toolkit.errors import UserError

MOST_GIB = 2048
"""No GPU has as much memory; a number above it was meant in another unit."""

_CONTRADICTIONS = (
    ("k", "no_speculation"),
    ("drafter", "no_speculation"),
    ("drafter_embeddings", "no_speculation"),
    ("enforce_eager", "compiled"),
)


def gib(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Memory of one GPU in GiB, from 1 to ``MOST_GIB``. Raises BadParameter."""
    if value is None or (math.isfinite(value) and 1 <= value <= MOST_GIB):
        return value
    if not math.isfinite(value) or value < 1:
        raise click.BadParameter(f"{value} is no GPU's memory in GiB")
    hint = f"; MiB? then {value / 1024:.1f}" if value >= 4 * 1024 else ""
    raise click.BadParameter(f"{value:g} GiB is more than any GPU has{hint}")


def share(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """A share above 0, and 1 at most. Raises BadParameter."""
    if value is None or 0 < value <= 1:
        return value
    hint = f"; write {value / 100:g}" if 1 < value <= 100 else ""
    raise click.BadParameter(f"{value:g} is not a share above 0 and up to 1{hint}")


def refuse_contradictions(given: dict[str, Any], drafts: bool) -> None:
    """Raise UserError for options that cannot both be meant. ``drafts``: whether anything was
    named that drafts."""
    for first, second in _CONTRADICTIONS:
        if given[first] and given[second]:
            raise UserError(
                f"{_flag(first)} and {_flag(second)} contradict each other", "give one of the two"
            )
    for name in ("k", "drafter_embeddings"):
        if given[name] and not drafts:
            raise UserError(
                f"{_flag(name)} is about a drafter, and none is named", "add --drafter PLACE"
            )
    if given["instance_type"] is None and given["gpu_memory_gib"] is None:
        raise UserError(
            "give either --gpu-memory-gib or --instance-type",
            "for example: --instance-type ml.g7e.2xlarge",
        )
    if given["instance_type"] is not None and given["gpu_memory_gib"] is not None:
        raise UserError(
            "--gpu-memory-gib and --instance-type both say which GPU it is", "give one of the two"
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
