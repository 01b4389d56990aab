"""``peagle catalog refresh``: new snapshots from AWS, shown before they are written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from peagle.aws.client import Aws
from peagle.aws.refresh import PARTS, Change, Part, Refreshed, changes, refreshed
from peagle.catalog import load_catalog
from peagle.catalog.tables import InstanceTable
from peagle.catalog.writing import (
    Tables,
    folder_for_tables,
    new_texts,
    refuse_unwritable,
    write_texts,
)
from peagle.cli.account import DEFAULT_REGION, Account, account_options
from peagle.cli.context import PeagleCommand
from peagle.cli.options import catalog_of
from peagle.cli.output.console import json_option, print_json, say, show_findings
from peagle.errors import UserError


@click.command(
    cls=PeagleCommand, epilog="Example: peagle catalog refresh --prices --region eu-west-1"
)
@click.option("--images", is_flag=True, help="Images of vLLM, from the SageMaker SDK's table.")
@click.option("--digests", is_flag=True, help="Digests of the images, from ECR.")
@click.option("--instances", is_flag=True, help="Instance types, from botocore and EC2.")
@click.option("--prices", is_flag=True, help="Prices of hosting, from the Pricing API.")
@click.option("--quotas", is_flag=True, help="Codes and defaults, from Service Quotas.")
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Region whose prices are asked; may be repeated.  [default: those there are prices of]",
)
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the tables.  [default: peagle --catalog DIR, else the bundled catalogue]",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and end.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@account_options
@json_option
@click.pass_context
def refresh(
    ctx: click.Context,
    /,
    account: Account,
    regions: tuple[str, ...],
    to: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **given: bool,
) -> None:
    """Bring the catalogue's images, digests, instance types, prices and quota codes up to date.

    Without a choice of parts, all of them. What would change is shown, and nothing is written
    before you agree. With --json and without --yes nothing is written. A part that cannot be had
    stays as it is, and the exit code is then not 0: 4 when AWS refused or did not answer, 2 when
    credentials or a package are missing.
    """
    folder = _folder(to or catalog_of(ctx), account, dry_run)
    before = _tables(folder)
    parts: list[Part] = [part for part in PARTS if given[part]] or list(PARTS)
    account.start()
    found = refreshed(
        before.runtimes,
        before.instances,
        parts,
        regions or _regions_of(before.instances),
        _Connections(account),
    )
    after = Tables(found.runtimes, found.instances)
    texts = new_texts(folder, before, after)
    changed = _changes(before, after)
    if not as_json:
        show_findings(() if _one_reason(found, parts) else found.findings)
        show_changes(changed)
    written: list[Path] = []
    if texts and not dry_run and (yes or (not as_json and _agreed(folder))):
        written = write_texts(folder, texts)
    if as_json:
        print_json(_document(found, changed, folder, written))
    elif changed or not found.failed:
        _say_what_was_written(changed, written)
    _end(ctx, found, parts)


def _folder(own: Path | None, account: Account, dry_run: bool) -> Path:
    """Where the tables are. Raises UserError where they could not be written, or should not be."""
    if own is None and account.sandbox:
        raise UserError(
            "the sandbox's answers are no news for the bundled catalogue", "try it with --to DIR"
        )
    folder = folder_for_tables(own)
    if not dry_run:
        refuse_unwritable(folder)
    return folder


def _tables(folder: Path) -> Tables:
    loaded = load_catalog(folder)
    return Tables(loaded.runtimes, loaded.instances)


def _changes(before: Tables, after: Tables) -> tuple[Change, ...]:
    return (
        *changes(before.runtimes, after.runtimes),
        *changes(before.instances, after.instances),
    )


class _Connections:
    """Connections of one account, made when a part needs one."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._first: Aws | None = None

    def __call__(self, region: str) -> Aws:
        if self._first is None:
            self._first = self._account.connect(region)
        return self._first.in_region(region)


def show_changes(changed: Sequence[Change]) -> None:
    """One line per change on stdout; prices that AWS confirms are counted only."""
    told = [change for change in changed if not change.confirmed]
    width = max((len(change.entry) for change in told), default=0)
    keys = max((len(change.key) for change in told), default=0)
    for file in dict.fromkeys(change.file for change in changed):
        click.secho(file, bold=True)
        for change in (one for one in told if one.file == file):
            arrow = f"{change.before} -> " if change.before is not None else ""
            after = click.style(change.after, fg="green")
            click.echo(f"  {change.entry:<{width}}  {change.key:<{keys}}  {arrow}{after}")
        confirmed = sum(change.confirmed for change in changed if change.file == file)
        if confirmed:
            click.echo(f"  {confirmed} prices are as they were, and get today's date")


def _regions_of(table: InstanceTable) -> tuple[str, ...]:
    """The regions that the snapshot has prices of."""
    found = {price.region for instance in table.instances for price in instance.prices}
    return tuple(sorted(found)) or (DEFAULT_REGION,)


def _agreed(folder: Path) -> bool:
    if not sys.stdin.isatty():
        raise UserError("there is no terminal to ask on", "read the changes above, then add --yes")
    return click.confirm(f"Write this to {folder}?", err=True)


def _one_reason(found: Refreshed, parts: Sequence[Part]) -> bool:
    """Whether no part could be had, and all for one reason: that is the error of the command."""
    return len(found.failed) == len(parts) and len({*map(str, found.failed.values())}) == 1


def _end(ctx: click.Context, found: Refreshed, parts: Sequence[Part]) -> None:
    """The exit code is that of the first part that could not be had."""
    if not found.failed:
        return
    first = next(iter(found.failed.values()))
    if _one_reason(found, parts):
        raise first
    say(f"{len(found.failed)} of {len(parts)} parts could not be asked.")
    ctx.exit(first.exit_code)


def _say_what_was_written(changed: Sequence[Change], written: Sequence[Path]) -> None:
    if not changed:
        say("The catalogue is up to date; nothing to write.")
    elif not written:
        say("Nothing was written.")
    for path in written:
        say(f"wrote {path}")


def _document(
    found: Refreshed, changed: Sequence[Change], folder: Path, written: list[Path]
) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "changes": [asdict(change) for change in changed],
        "findings": [finding.model_dump(mode="json") for finding in found.findings],
        "failed": list(found.failed),
        "written": [str(path) for path in written],
    }
