"""``peagle catalog``: list, show and check the pairs of the catalogue; init and refresh."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from pydantic_core import to_json

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.documents import Problem
from peagle.catalog.evidence import evidence_for, load_evidence
from peagle.catalog.find import default_support, describe_pair, summarize_target, summarize_targets
from peagle.catalog.loading import check_catalog, check_catalog_file, holds_measurements
from peagle.checks.report import check_local_weights
from peagle.cli.context import PeagleCommand
from peagle.cli.options import catalog_of, complete_pair
from peagle.cli.view.console import json_option, print_json, print_line, print_status
from peagle.errors import CatalogError


class _CatalogGroup(click.Group):
    """Loads ``init`` and ``refresh``, which import boto3, only when they are called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), "init", "refresh"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name == "init":
            from peagle.cli.catalog_init import init

            return init
        if cmd_name == "refresh":
            from peagle.cli.catalog_refresh import refresh

            return refresh
        return super().get_command(ctx, cmd_name)


@click.group(cls=_CatalogGroup, epilog="Example: peagle catalog list")
def catalog() -> None:
    """List, show and check pairs of models; write an entry for another one.

    The catalogue consists of the bundled files, plus those in --catalog DIR.
    """


@catalog.command("list", cls=PeagleCommand, epilog="Example: peagle catalog list --json")
@json_option
@click.pass_context
def list_pairs(ctx: click.Context, as_json: bool) -> None:
    """List all targets with their drafters."""
    folder = catalog_of(ctx)
    targets = summarize_targets(load_catalog(folder), load_evidence(folder))
    if as_json:
        return click.echo(to_json({"targets": targets}, indent=2).decode())
    from peagle.cli.view.catalog import print_list

    return print_list(targets)


@catalog.command(
    "show", cls=PeagleCommand, epilog="Example: peagle catalog show gpt-oss-20b+eagle3"
)
@click.argument("pair", shell_complete=complete_pair)
@json_option
@click.pass_context
def show_pair(ctx: click.Context, pair: str, as_json: bool) -> None:
    """Show everything that the catalogue holds about PAIR.

    PAIR is TARGET or TARGET+DRAFTER; TARGET alone means its default drafter.
    """
    folder = catalog_of(ctx)
    loaded, evidence = load_catalog(folder), load_evidence(folder)
    catalog_pair = find_pair(loaded, pair)
    target, drafter = catalog_pair.target, catalog_pair.drafter
    measured = evidence_for(evidence, target, drafter) if drafter else ()
    if as_json:
        return print_json(describe_pair(loaded, catalog_pair, measured))
    from peagle.cli.view.catalog import print_pair

    support = default_support(loaded, drafter)
    return print_pair(catalog_pair, measured, summarize_target(target, evidence), support)


@catalog.command(
    "check", cls=PeagleCommand, epilog="Example: peagle catalog check my-catalog/acme/chat-7b.yaml"
)
@click.argument(
    "paths",
    metavar="[PATH]...",
    nargs=-1,
    type=click.Path(exists=True, path_type=Path),
)
@json_option
@click.pass_context
def check(ctx: click.Context, paths: tuple[Path, ...], as_json: bool) -> None:
    """Check the catalogue, or the files and folders PATH, and list all problems.

    Exits with 2 if there are problems.
    """
    catalog_folder = catalog_of(ctx)
    checks = {path: _check_path(path, catalog_folder) for path in paths or (None,)}
    checked = len({file.resolve() for files, _ in checks.values() for file in files})
    problems = list(dict.fromkeys(problem for _, each in checks.values() for problem in each))
    if as_json:
        print_json({"files": checked, "problems": [asdict(problem) for problem in problems]})
    else:
        for problem in problems:
            print_line(f"{problem.text}{f' (fix: {problem.fix})' if problem.fix else ''}")
        for path, (_, of_path) in checks.items():
            if path is None or not path.is_file() or path.suffix != ".json" or of_path:
                continue
            if not holds_measurements(path):
                print_status(
                    f"{path} has no results, speeds or starts: the catalogue ignores the file"
                )
        places = ((path or catalog_folder, files) for path, (files, _) in checks.items())
        folders = [(place, files) for place, files in places if place and place.is_dir()]
        mine = (f", {_below(place, files)} of them in {place}" for place, files in folders)
        print_status(
            f"{checked} file{'s' * (checked != 1)} checked{''.join(mine)}, "
            f"{len(problems) or 'no'} problem{'s' * (len(problems) != 1)}"
        )
    ctx.exit(2 if problems else 0)


def _below(folder: Path, files: list[Path]) -> int:
    """How many of the files are below ``folder``; the others are bundled."""
    below = folder.resolve()
    return sum(file.resolve().is_relative_to(below) for file in files)


def _check_path(path: Path | None, catalog_folder: Path | None) -> tuple[list[Path], list[Problem]]:
    """The files of the catalogue, or at ``path``, and their problems."""
    folder = catalog_folder if path is None or path.is_file() else path
    if path is not None and path.is_file():
        checked, problems = [path], check_catalog_file(path, catalog_folder)
    else:
        checked, problems = check_catalog(folder)
    with suppress(CatalogError):  # of the catalogue's tables or short names, reported above
        problems += check_local_weights(path, catalog_folder, load_catalog(folder))
    return checked, problems
