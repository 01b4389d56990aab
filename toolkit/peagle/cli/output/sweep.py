"""The result of a sweep as text: a table for each workload, settings as columns."""

from __future__ import annotations

from collections.abc import Sequence

import click

from peagle.bench.models import BenchResult, BenchRow
from peagle.cli.output.console import align_columns

_NONE = "-"


def print_sweep(result: BenchResult, summaries: Sequence[str]) -> None:
    """Print tokens per second by load and setting, then the summaries, one for each workload."""
    names = dict.fromkeys(row.load.workload.name for row in result.rows)
    for name in names:
        rows = [row for row in result.rows if row.load.workload.name == name]
        click.echo(f"{name}: output tokens per second, with 95 % confidence interval")
        table = _table(rows)
        for line in align_columns(table, table[0]):
            click.echo(f"  {line}")
    for summary in summaries:
        click.echo(summary)
    if any(row.saturated for row in result.rows):
        click.echo("* saturated: more requests only wait longer; the report has the reasons.")


def _table(rows: Sequence[BenchRow]) -> list[tuple[str, ...]]:
    settings = list(dict.fromkeys(row.setting for row in rows))
    loads = sorted({row.load.concurrency for row in rows})
    cells = {(row.load.concurrency, row.setting): _cell(row) for row in rows}
    return [
        ("requests", *(setting.text for setting in settings)),
        *(
            (f"{load:,}", *(cells.get((load, setting), _NONE) for setting in settings))
            for load in loads
        ),
    ]


def _cell(row: BenchRow) -> str:
    """``4,148 ±3%``; a star marks a saturated load."""
    speed = row.tokens_per_second
    digits = 0 if speed.value >= 100 else 1
    star = "*" if row.saturated else ""
    return f"{speed.value:,.{digits}f} ±{speed.spread:.0%}{star}"
