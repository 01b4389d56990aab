"""``peagle catalog refresh``: new snapshots from AWS, shown before they are written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import click

from peagle.aws.client import Aws
from peagle.aws.refresh import PARTS, Part, refresh_tables, table_changes
from peagle.catalog import load_catalog
from peagle.catalog.tables import InstanceTable
from peagle.catalog.writing import Tables, new_texts, refuse_unwritable, write_texts
from peagle.cli.context import PeagleCommand, findings_in_context, own_command
from peagle.cli.options import yes_option
from peagle.cli.session import Session, account_options
from peagle.cli.view.catalog import print_changes
from peagle.cli.view.console import (
    confirmed,
    json_option,
    print_findings,
    print_json,
    print_status,
)
from peagle.data import data_folder
from peagle.errors import Fix, UserError
from peagle.planning.runtime import DEFAULT_REGION


@click.command(
    cls=PeagleCommand, epilog="Example: peagle catalog refresh --prices --region eu-west-1"
)
@click.option("--images", is_flag=True, help="Images of vLLM, from the SageMaker SDK's table.")
@click.option("--digests", is_flag=True, help="Digests of the images, from ECR.")
@click.option("--prices", is_flag=True, help="Prices of hosting, from the Pricing API.")
@click.option(
    "--region",
    "regions",
    multiple=True,
    help="Region of the prices; may be repeated.  [default: regions with a price in the catalogue]",
)
@click.option(
    "--to",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the tables.  [default: peagle --catalog DIR, else the bundled catalogue]",
)
@click.option("--dry-run", is_flag=True, help="Show the changes and exit.")
@yes_option
@account_options
@json_option
@click.pass_context
def refresh(
    ctx: click.Context,
    /,
    session: Session,
    regions: tuple[str, ...],
    to: Path | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **selected: bool,
) -> None:
    """Update the catalogue's images, digests and prices.

    Updates everything unless you select parts. The changes are shown, and nothing is written before
    you confirm. With --json nothing is written without --yes. A part that cannot be read stays
    unchanged. Exits with 4 if AWS rejected a request or did not answer, and with 2 if credentials
    or a package are missing.
    """
    folder = _folder(ctx, session, to)
    if not dry_run:
        refuse_unwritable(folder)
    loaded = load_catalog(folder)
    before = Tables(loaded.runtimes, loaded.instances)
    parts: list[Part] = [part for part in PARTS if selected[part]] or list(PARTS)
    session.start()
    regions = regions or _regions_of(before.instances)
    refreshed = refresh_tables(before, parts, regions, _connector(session))
    failures = list(refreshed.failed.values())
    is_one_reason = len(failures) == len(parts) and len({*map(str, failures)}) == 1
    texts = new_texts(before, refreshed.tables)
    changes = table_changes(before, refreshed.tables)
    if not as_json:
        print_findings(() if is_one_reason else refreshed.findings, err=True)
        print_changes(changes)
    written: list[Path] = []
    again = (*own_command(ctx), "--yes")
    fix = Fix("review the changes above, then pass --yes", again)
    question = f"Write these changes to {folder}?"
    if texts and not dry_run and (yes or (not as_json and confirmed(question, fix))):
        written = write_texts(folder, texts)
    if as_json:
        findings = findings_in_context(refreshed.findings)
        print_json(
            {
                "folder": str(folder),
                "changes": [asdict(change) for change in changes],
                "findings": [finding.model_dump(mode="json") for finding in findings],
                "failed": list(refreshed.failed),
                "written": [str(path) for path in written],
            }
        )
    elif changes:
        print_status("\n".join(f"wrote {path}" for path in written) or "Nothing was written.")
    elif not failures:
        print_status("The catalogue is up to date; nothing to write.")
    if is_one_reason:
        raise failures[0]
    if failures:
        print_status(f"{len(failures)} of {len(parts)} parts were not refreshed.")
        ctx.exit(failures[0].exit_code)


def _folder(ctx: click.Context, session: Session, to: Path | None) -> Path:
    """The folder of the tables. Raises UserError for the bundled one with a sandbox's responses."""
    catalog = ctx.find_root().params.get("catalog_folder")  # it may be empty
    folder = to or (Path(catalog) if catalog else None)
    if folder is None and session.sandbox:
        raise UserError(
            "responses of the sandbox must not go into the bundled catalogue", "add --to DIR"
        )
    return folder or data_folder("model_catalog")


def _connector(session: Session) -> Callable[[str], Aws]:
    """Connects to regions of one account, which is looked up once, when a part needs it."""
    first: list[Aws] = []

    def connect(region: str) -> Aws:
        if not first:
            first.append(session.aws(region))
        return first[0].in_region(region)

    return connect


def _regions_of(table: InstanceTable) -> tuple[str, ...]:
    regions = {price.region for instance in table.instances for price in instance.prices}
    return tuple(sorted(regions)) or (DEFAULT_REGION,)
