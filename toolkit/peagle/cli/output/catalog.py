"""Prints the catalogue and the changes of a refresh as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from peagle import api
from peagle.catalog.evidence import Evidence
from peagle.catalog.schema import Drafter, EngineSetting, Pair, Target
from peagle.catalog.tables import MethodSupport
from peagle.cli.context import command_text
from peagle.cli.output.console import (
    align_columns,
    fit_columns,
    indented,
    make_console,
    table_width,
    wrapped,
)

if TYPE_CHECKING:  # a list must not import boto3
    from peagle.aws.refresh import Change

_COLUMNS = ("", "pair", "method", "K", "vLLM", "licence", "evidence")
_DISPENSABLE = ("licence", "vLLM", "method")
"""Columns that a narrow terminal omits, in this order."""

_GIB = 2**30
_GAP = 2
_PIPE_WIDTH = 160
"""Columns of output that does not go to a terminal."""


def print_list(targets: list[dict[str, Any]]) -> None:
    """One block per target, one line per drafter; ``*`` marks the default.

    A narrow terminal gets fewer columns. Rich, which takes 10 ms per table, folds those that are
    still too wide or are not ASCII.
    """
    console = make_console(_PIPE_WIDTH)
    for target in targets:
        needs = f"vLLM {target['min_vllm']} or later, {target['licence']}"
        if not target["drafters"]:
            _print_heading(target["id"], f"{needs}, no drafters", console.width)
            continue
        rows = [_COLUMNS, *_rows(target)]
        rows, _ = fit_columns(rows, console.width, _DISPENSABLE)
        if table_width(rows) > console.width or not f"{needs}{rows}".isascii():
            _print_heading(target["id"], needs, console.width)
            console.print(_drafters(console, target))
            continue
        lines = [*align_columns(rows)]
        _print_heading(target["id"], needs, console.width)
        click.echo("\n".join([click.style(lines[0], dim=True), *lines[1:]]))
    console.print(
        "* marks the default. K: recommended tokens per step, of the trained number. -: unknown."
    )
    show = command_text(("peagle", "catalog", "show", "PAIR"))
    console.print(f"Details of a pair: {show}", markup=False, soft_wrap=True)


def _print_heading(target_id: str, needs: str, width: int) -> None:
    """A target with what it needs: beside it, or below where the line would be too long."""
    name = click.style(target_id, bold=True)
    if len(target_id) + _GAP + len(needs) <= width:
        click.echo(f"{name}{' ' * _GAP}{needs}")
        return
    lines = wrapped(needs, width - _GAP)
    click.echo("\n".join((name, *(f"{' ' * _GAP}{line}" for line in lines))))


def print_pair(
    pair: Pair,
    measured: tuple[Evidence, ...],
    target: dict[str, Any],
    support: MethodSupport | None,
) -> None:
    """Everything about a pair; ``support`` is what the default vLLM does with its method."""
    console = make_console(_PIPE_WIDTH)
    _section(console, pair.target.title, _target_facts(pair.target))
    if pair.drafter:
        facts = [*_drafter_facts(pair.drafter), *_support_facts(support)]
        _section(console, pair.drafter.title, facts)
        _print_published(console, pair.drafter, measured)
        _print_problems(console, pair.drafter)
    _print_settings(console, pair)
    _section(console, "Proof", enumerate(pair.target.proof.prompts, start=1))
    console.print("\n[bold]All drafters[/]")
    console.print(_drafters(console, target))


def print_changes(changes: Sequence[Change]) -> None:
    """One line per change; prices that AWS confirms are only counted."""
    new = [change for change in changes if not change.confirmed]
    width = max((len(change.entry) for change in new), default=0)
    keys = max((len(change.key) for change in new), default=0)
    for file in dict.fromkeys(change.file for change in changes):
        click.secho(file, bold=True)
        for change in (one for one in new if one.file == file):
            arrow = f"{change.before} -> " if change.before is not None else ""
            after = click.style(change.after, fg="green")
            click.echo(f"  {change.entry:<{width}}  {change.key:<{keys}}  {arrow}{after}")
        confirmed = sum(change.confirmed for change in changes if change.file == file)
        if confirmed:
            click.echo(f"  {confirmed} prices are unchanged and get today's date")


def _drafters(console: Console, target: dict[str, Any]) -> Table:
    rows, _ = fit_columns([_COLUMNS, *_rows(target)], console.width, _DISPENSABLE)
    table = _table(*rows[0])
    for column in table.columns[:-1]:
        column.no_wrap = True
    for row in rows[1:]:
        table.add_row(*map(escape, row))
    return table


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


def _target_facts(target: Target) -> Iterable[tuple[str, Any]]:
    shape = target.architecture
    yield "id", f"{target.id} (short: {target.short_name})"
    yield "weights", f"{target.weights} at {target.revision}, {_size(target.weight_bytes)}"
    yield "licence", target.licence + (", gated" if target.gated else "")
    yield "parameters", f"{target.parameters:,}, {target.quantization or target.dtype}"
    yield "vLLM", f"{target.min_vllm} or later"
    yield "context", f"{target.default_max_model_len:,} by default, at most {shape.max_positions:,}"
    yield "architecture", f"{shape.class_name}, {shape.layers} layers, hidden {shape.hidden_size:,}"
    for group in shape.attention:
        window = f", window {group.window:,}" if group.window else ""
        heads = f"{group.kv_heads} key-value heads of {group.head_dim}"
        yield "attention", f"{group.layers} {group.kind} layers, {heads}{window}"
    if shape.experts:
        yield "experts", f"{shape.experts}, {shape.experts_per_token} per token"
    cache = api.kv_bytes(shape.attention, target.default_max_model_len)
    yield "cache", f"{_size(cache)} in bf16 for {target.default_max_model_len:,} tokens"
    yield "source", target.source


def _drafter_facts(drafter: Drafter) -> Iterable[tuple[str, Any]]:
    parallel = ", drafts in parallel" if drafter.parallel_drafting else ""
    yield "name", drafter.name
    yield "method", drafter.method + parallel
    if drafter.weights:
        size = f", {_size(drafter.weight_bytes)}" if drafter.weight_bytes else ""
        at = f" at {drafter.revision}" if drafter.revision else ""
        form = f"format {drafter.format}" if drafter.format else "format unknown"
        yield "weights", f"{drafter.weights}{at}, {form}{size}"
    if not drafter.public:
        yield "weights", f"not public; fallback: {drafter.fallback or 'none'}"
    trained = f"for {drafter.k_trained}" if drafter.k_trained else "K unknown"
    yield "K", f"{drafter.k_recommended} recommended, trained {trained}"
    yield "vLLM", f"{drafter.min_vllm} or later"
    yield "licence", drafter.licence or "unknown"
    if drafter.hidden_layers:
        yield "layers", drafter.hidden_layers
    if drafter.max_positions:
        yield "context", f"at most {drafter.max_positions:,}"
    yield "floor", f"{drafter.acceptance_floor or 'none'} (minimum acceptance length of a proof)"
    if drafter.use:
        yield "for", drafter.use
    yield "source", drafter.source


def _support_facts(support: MethodSupport | None) -> Iterable[tuple[str, Any]]:
    """What the default vLLM version does with the method."""
    if support is None:
        return
    runner = {"by-target": "V2 for dense targets, V1 for most mixtures of experts"}
    yield "runner", runner.get(support.model_runner, support.model_runner)
    yield "adaptive", f"verification: {'supported' if support.adaptive else 'not supported'}"
    if support.note:
        yield "note", support.note


def _print_published(console: Console, drafter: Drafter, measured: tuple[Evidence, ...]) -> None:
    console.print("\n[bold]Acceptance length[/]")
    rows = []
    for item in measured:
        source = f"{item.file}: vLLM {item.vllm} on {item.device}, {item.date}"
        rows.append(("measured", str(item.k), f"{item.acceptance_length:.2f}", source))
    if not measured:
        rows.append(("unverified", "", "", "no evidence file has this drafter"))
    for claim in drafter.published:
        length = f"{claim.acceptance_length:.2f}"
        rows.append((f"claimed, {claim.benchmark}", str(claim.k), length, claim.source))
    _print_rows(console, ("", "K", "accepted", "source"), rows, short=3)


def _print_problems(console: Console, drafter: Drafter) -> None:
    if not drafter.problems:
        return
    console.print("\n[bold]Known problems[/]")
    rows = []
    for problem in drafter.problems:
        what = "; ".join(filter(None, (problem.summary, problem.fix)))
        rows.append((problem.level, problem.vllm or "all", what, problem.source))
    _print_rows(console, ("", "vLLM", "what", "source"), rows, short=2)


def _print_settings(console: Console, pair: Pair) -> None:
    arguments = [*pair.target.engine_arguments]
    arguments += pair.drafter.engine_arguments if pair.drafter else ()
    settings = [(f"--{setting.name}", setting) for setting in arguments]
    settings += [(setting.name, setting) for setting in pair.target.environment]
    if not settings:
        return
    console.print("\n[bold]Engine settings[/]")
    rows = []
    for name, setting in settings:
        value = "" if setting.value is True else f" {setting.value}"
        rows.append((f"{name}{value}", _where(setting), setting.because))
    _print_rows(console, ("", "where", "because"), rows, short=1)


def _where(setting: EngineSetting) -> str:
    limits = [*setting.gpu_architectures, *([f"vLLM {setting.vllm}"] if setting.vllm else [])]
    return ", ".join(limits) or "everywhere"


def _section(console: Console, title: str, facts: Iterable[tuple[Any, Any]]) -> None:
    console.print(f"\n[bold]{escape(title)}[/]")
    rows = [(str(name), str(value)) for name, value in facts]
    label = max(len(name) for name, _ in rows) + _GAP
    for name, value in rows:
        text = indented(value, console.width, label)
        console.print(f"{name:<{label}}{text}", markup=False, soft_wrap=True)


def _print_rows(
    console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]], short: int
) -> None:
    """Print a table. Where that would break a word, such as an address, print blocks: the first
    ``short`` cells of a row in its first line, each other cell below."""
    columns = zip(headings, *rows, strict=True)
    longest = [
        max(len(word) for cell in column for word in ["", *cell.split()]) for column in columns
    ]
    if sum(longest) + _GAP * (len(longest) - 1) <= console.width:
        table = _table(*headings)
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        return
    for row in rows:
        lines = ["  ".join(filter(None, row[:short]))]
        for cell in row[short:]:
            lines += [f"    {line}" for line in wrapped(cell, console.width - 4)]
        console.print("\n".join(lines), markup=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _size(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB // 10 else f"{size / 2**20:.2f} MiB"
