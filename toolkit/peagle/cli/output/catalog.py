"""Prints the catalogue and the changes of a refresh as tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from peagle.catalog.evidence import Evidence
from peagle.catalog.schema import Drafter, EngineSetting, Pair, Target, kv_bytes
from peagle.catalog.tables import MethodSupport
from peagle.cli.context import command_text
from peagle.cli.output.console import print_facts, print_line, print_table

if TYPE_CHECKING:  # a list must not import boto3
    from peagle.aws.refresh import Change

_COLUMNS = ("", "pair", "method", "K", "vLLM", "licence", "evidence")
_GIB = 2**30


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
    _print_section(pair.target.title, _target_facts(pair.target))
    if pair.drafter:
        facts = [*_drafter_facts(pair.drafter), *_support_facts(support)]
        _print_section(pair.drafter.title, facts)
        _print_published(pair.drafter, measured)
        _print_problems(pair.drafter)
    _print_settings(pair)
    _print_section("Proof", enumerate(pair.target.proof.prompts, start=1))
    print_line("\nAll drafters", bold=True)
    print_table(_COLUMNS, _rows(target))


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
    cache = kv_bytes(shape.attention, target.default_max_model_len)
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


def _print_published(drafter: Drafter, measured: tuple[Evidence, ...]) -> None:
    print_line("\nAcceptance length", bold=True)
    rows = []
    for item in measured:
        source = f"{item.file}: vLLM {item.vllm} on {item.device}, {item.date}"
        rows.append(("measured", str(item.k), f"{item.acceptance_length:.2f}", source))
    if not measured:
        rows.append(("unverified", "", "", "no evidence file has this drafter"))
    for claim in drafter.published:
        length = f"{claim.acceptance_length:.2f}"
        rows.append((f"claimed, {claim.benchmark}", str(claim.k), length, claim.source))
    print_table(("", "K", "accepted", "source"), rows)


def _print_problems(drafter: Drafter) -> None:
    if not drafter.problems:
        return
    print_line("\nKnown problems", bold=True)
    rows = []
    for problem in drafter.problems:
        what = "; ".join(filter(None, (problem.summary, problem.fix)))
        rows.append((problem.level, problem.vllm or "all", what, problem.source))
    print_table(("", "vLLM", "what", "source"), rows)


def _print_settings(pair: Pair) -> None:
    arguments = [*pair.target.engine_arguments]
    arguments += pair.drafter.engine_arguments if pair.drafter else ()
    settings = [(f"--{setting.name}", setting) for setting in arguments]
    settings += [(setting.name, setting) for setting in pair.target.environment]
    if not settings:
        return
    print_line("\nEngine settings", bold=True)
    rows = []
    for name, setting in settings:
        value = "" if setting.value is True else f" {setting.value}"
        rows.append((f"{name}{value}", _where(setting), setting.because))
    print_table(("", "where", "because"), rows)


def _where(setting: EngineSetting) -> str:
    limits = [*setting.gpu_architectures, *([f"vLLM {setting.vllm}"] if setting.vllm else [])]
    return ", ".join(limits) or "everywhere"


def _print_section(title: str, facts: Iterable[tuple[Any, Any]]) -> None:
    print_line(f"\n{title}", bold=True)
    print_facts(((str(name), str(value)) for name, value in facts), 14, indent=0, err=False)


def _size(size: int) -> str:
    return f"{size / _GIB:.2f} GiB" if size >= _GIB // 10 else f"{size / 2**20:.2f} MiB"
