"""``peagle catalog check``: whether the catalogue and the weights beside it agree.

``peagle catalog``: what can be deployed, what is known of it, and whether that is right.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from pydantic_core import to_json

from peagle.catalog import find_pair, load_catalog, pair_name
from peagle.catalog.documents import Problem, shown
from peagle.catalog.evidence import Evidence, evidence_for, load_evidence
from peagle.catalog.find import DrafterGlance, TargetGlance, glance_at_targets, glance_of
from peagle.catalog.loading import check_catalog, check_file, examine, target_files
from peagle.catalog.schema import Catalog, Target
from peagle.checkpoints import FolderSource, read_checkpoint
from peagle.checks import check as check_imported
from peagle.checks import make_case
from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import json_option, print_json
from peagle.errors import CatalogError, CheckpointError

_RULE = "target-differs"
_LOCAL = b"weights: ./"


def contradictions(path: Path | None, own: Path | None) -> list[Problem]:
    """What a target's file, or every one of the catalogue, says against its own config.json.

    Only of weights in a folder beside the file: nothing is fetched. What is wrong with the file
    itself is told elsewhere.
    """
    files = [path] if path is not None and path.is_file() else target_files(path or own).values()
    try:
        tables = load_catalog()
    except CatalogError:
        return []
    return list(_all(files, tables))


def _all(files: Iterable[Path], tables: Catalog) -> Iterator[Problem]:
    for file in files:
        if file.suffix == ".yaml" and _LOCAL in file.read_bytes():
            target = examine(file, Target)[0]
            if target is not None and (target.weights or "").startswith("./"):
                yield from _of(file, target, tables)


def _of(file: Path, target: Target, tables: Catalog) -> Iterator[Problem]:
    folder = file.parent / str(target.weights)
    try:
        read = read_checkpoint(FolderSource(folder), config_only=True)
        findings = check_imported(
            make_case(tables, target, None, target_checkpoint=read), only={_RULE}
        )
    except CheckpointError as bad:
        yield Problem(shown(file), None, "weights", bad.message, bad.fix)
        return
    for finding in findings:
        yield Problem(shown(file), None, "architecture", finding.message, finding.fix)


class _CatalogGroup(click.Group):
    """``refresh`` brings boto3, so it is loaded only when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "refresh"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "refresh":
            from peagle.cli.catalog_refresh import refresh

            return refresh
        return super().get_command(ctx, cmd_name)


@click.group(cls=_CatalogGroup, epilog="Example: peagle catalog list")
def catalog() -> None:
    """List, show and check pairs of models.

    The catalogue is what comes with the toolkit, and the folder of `peagle --catalog DIR`.
    """


@catalog.command("list", cls=PeagleCommand, epilog="Example: peagle catalog list --json")
@json_option
@click.pass_obj
def list_pairs(folder: str | None, as_json: bool) -> None:
    """List all targets with their drafters."""
    own = Path(folder) if folder else None
    evidence = load_evidence(own)
    with _kept():
        targets = [summary(target, evidence) for target in glance_at_targets(own)]
    if as_json:
        return click.echo(to_json({"targets": targets}, indent=2).decode())
    from peagle.cli.output.catalog import print_list

    return print_list(targets)


@catalog.command(
    "show", cls=PeagleCommand, epilog="Example: peagle catalog show gpt-oss-20b+eagle3"
)
@click.argument("pair")
@json_option
@click.pass_obj
def show_pair(folder: str | None, pair: str, as_json: bool) -> None:
    """Show everything that the catalogue knows of PAIR.

    PAIR is TARGET or TARGET+DRAFTER; a bare TARGET comes with its default drafter.
    """
    own = Path(folder) if folder else None
    loaded, evidence = load_catalog(own), load_evidence(own)
    found = find_pair(loaded, pair)
    drafter = found.drafter
    measured = evidence_for(evidence, found.target, drafter) if drafter else ()
    if as_json:
        return print_json(
            {
                "pair": pair_name(found.target, drafter),
                "file": loaded.origins[found.target.id],
                "target": found.target.model_dump(mode="json"),
                "drafter": drafter.model_dump(mode="json") if drafter else None,
                "verified": bool(measured),
                "evidence": [asdict(item) for item in measured],
            }
        )
    from peagle.cli.output.catalog import print_pair

    return print_pair(found, measured, summary(glance_of(found.target), evidence))


@catalog.command(
    "check", cls=PeagleCommand, epilog="Example: peagle catalog check my-catalog/acme/chat-7b.yaml"
)
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@json_option
@click.pass_context
def check(context: click.Context, path: Path | None, as_json: bool) -> None:
    """Check the catalogue, or the file or folder PATH, and list everything that is wrong.

    The exit code is 0 when nothing is wrong, else 2.
    """
    if path is not None and path.is_file():
        checked, problems = 1, check_file(path)
    else:
        checked, problems = check_catalog(path or (Path(context.obj) if context.obj else None))
    problems += contradictions(path, Path(context.obj) if context.obj else None)
    if as_json:
        print_json({"files": checked, "problems": [asdict(problem) for problem in problems]})
    for problem in [] if as_json else problems:
        click.echo(f"{problem.text}{f' ({problem.fix})' if problem.fix else ''}")
    if not as_json:
        found = f"{len(problems)} wrong" if problems else "nothing wrong"
        click.echo(f"{checked} {'file' if checked == 1 else 'files'} checked, {found}", err=True)
    context.exit(2 if problems else 0)


@contextmanager
def _kept() -> Iterator[None]:
    """Nothing of a long list is thrown away before it is printed, so nobody need look for it."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def summary(target: TargetGlance, evidence: tuple[Evidence, ...]) -> dict[str, Any]:
    """What the list says of a target and its drafters."""
    return {
        "id": target.id,
        "short_name": target.short_name,
        "title": target.title,
        "licence": target.licence,
        "min_vllm": target.min_vllm,
        "default_drafter": target.default_drafter,
        "drafters": [
            _drafter_summary(target, drafter, evidence_for(evidence, target, drafter))
            for drafter in target.drafters
        ],
    }


def _drafter_summary(
    target: TargetGlance, drafter: DrafterGlance, measured: tuple[Evidence, ...]
) -> dict[str, Any]:
    return {
        "name": drafter.name,
        "pair": pair_name(target, drafter),
        "title": drafter.title,
        "kind": kind_of(drafter),
        "method": drafter.method,
        "parallel_drafting": drafter.parallel_drafting,
        "weights": drafter.weights,
        "public": drafter.public,
        "k_recommended": drafter.k_recommended,
        "k_trained": drafter.k_trained,
        "min_vllm": drafter.min_vllm,
        "licence": drafter.licence,
        "verified": bool(measured),
        "evidence": [asdict(item) for item in measured],
    }


def kind_of(drafter: DrafterGlance) -> str:
    """The method as people call it: P-EAGLE is vLLM's eagle3 with parallel drafting."""
    if drafter.parallel_drafting:
        return "P-EAGLE"
    names = {"eagle3": "EAGLE-3", "mtp": "MTP", "dflash": "DFlash", "dspark": "DSpark"}
    return names.get(drafter.method, drafter.method)
