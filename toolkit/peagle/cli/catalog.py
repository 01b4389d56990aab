"""``peagle catalog``: list, show and check the pairs of the catalogue; init and refresh."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import click
from pydantic_core import to_json

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.documents import Problem
from peagle.catalog.loading import check_catalog, check_catalog_file, holds_measurements
from peagle.catalog.summary import default_support, describe_pair, find_evidence, summarize_target
from peagle.catalog.writing import Tables, entry_text, new_texts, write_texts
from peagle.checkpoints.models import Checkpoint
from peagle.cli.context import command_text, findings_in_context, is_set, typed_command
from peagle.cli.options import (
    OUTPUT,
    add_options,
    catalog_of,
    command,
    command_catalog,
    complete_pair,
    option,
    yes_option,
)
from peagle.cli.session import Session, account_options, cloud_options
from peagle.cli.view.console import (
    confirmed,
    print_findings,
    print_json,
    print_line,
    print_status,
    wants_json,
)
from peagle.data import data_folder
from peagle.errors import Fix, UserError
from peagle.planning.runtime import DEFAULT_REGION
from peagle.store import write_output
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import entry_file, entry_findings, new_entry


@click.group(epilog="Example: peagle catalog list")
def catalog() -> None:
    """List, show and check pairs of models; write an entry for another one.

    The catalogue consists of the bundled files, plus those in --catalog DIR.
    """


@command("peagle catalog list --json", name="list", of=catalog)
def list_pairs() -> None:
    """List all targets with their drafters."""
    loaded = command_catalog()
    targets = [summarize_target(loaded, target) for target in loaded.targets.values()]
    if wants_json():
        return click.echo(to_json({"targets": targets}, indent=2).decode())
    from peagle.cli.view.choose import print_list

    return print_list(targets)


@command("peagle catalog show gpt-oss-20b+eagle3", name="show", of=catalog)
@click.argument("pair", shell_complete=complete_pair)
def show_pair(pair: str) -> None:
    """Show everything that the catalogue holds about PAIR.

    PAIR is TARGET or TARGET+DRAFTER; TARGET alone means its default drafter.
    """
    loaded = command_catalog()
    catalog_pair = find_pair(loaded, pair)
    if wants_json():
        return print_json(describe_pair(loaded, catalog_pair))
    from peagle.cli.view.choose import print_pair

    target, drafter = catalog_pair.target, catalog_pair.drafter
    measured = find_evidence(loaded, target, drafter) if drafter else ()
    support = default_support(loaded, drafter)
    return print_pair(catalog_pair, measured, summarize_target(loaded, target), support)


@command("peagle catalog check my-catalog/acme/chat-7b.yaml", name="check", of=catalog)
@click.argument(
    "paths", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True, path_type=Path)
)
@click.pass_context
def check(ctx: click.Context, paths: tuple[Path, ...]) -> None:
    """Check the catalogue, or the files and folders PATH, and list all problems.

    Exits with 2 if there are problems.
    """
    catalog_folder = catalog_of(ctx)
    files: set[Path] = set()
    problems: list[Problem] = []
    for path in paths or (None,):
        if path is not None and path.is_file():
            folder, checked = catalog_folder, [path]
            of_path = check_catalog_file(path, catalog_folder)
            if not of_path and path.suffix == ".json" and not holds_measurements(path):
                text = "has no results, speeds or starts: the catalogue ignores the file"
                print_status(f"{path} {text}")
        else:
            folder = path or catalog_folder
            checked, of_path = check_catalog(folder)
        files |= {file.resolve() for file in checked}
        problems += of_path
    problems = list(dict.fromkeys(problems))
    if wants_json():
        print_json({"files": len(files), "problems": [problem._asdict() for problem in problems]})
    else:
        for problem in problems:
            print_line(f"{problem.text}{f' (fix: {problem.fix})' if problem.fix else ''}")
        print_status(f"files checked: {len(files)}, problems: {len(problems)}")
    ctx.exit(2 if problems else 0)


@command(
    "peagle catalog init Qwen/Qwen3-4B -o my-catalog",
    "peagle catalog init ./my/model --drafter ./my/head -o my-catalog/acme/chat-7b.yaml",
    of=catalog,
)
@click.argument("model")
@option("--drafter HEAD", "An EAGLE-3 or P-EAGLE head for it: folder, s3://..., Hub id.")
@option(
    "-o --output FILE|DIR",
    "ORGANIZATION/MODEL.yaml, which is the entry's id, or the folder "
    "of a catalogue.  [default: print it]",
    OUTPUT,
)
@option("--force", "Replace the file.", bool)
@cloud_options
def init(
    model: str, drafter: str | None, output: Path | None, force: bool, session: Session
) -> None:
    """Write a catalogue file for MODEL: a folder, s3://..., or an id on the Hub.

    Reads config.json and weight headers there, never the weights. What they do not say, such as
    the licence, has a comment that begins with "unknown:". `peagle --catalog DIR` uses the file.
    """

    def read(location: str) -> Checkpoint:
        session.start()
        return checkpoint_at(location, lambda: session.aws(session.region or DEFAULT_REGION))

    file = entry_file(model, output)
    if output is not None and file.exists() and not force:
        raise UserError(f"{file} exists", "use another -o, or add --force", code="file-exists")
    loaded = command_catalog()
    checkpoint, head = read(model), read(drafter) if drafter else None
    entry = new_entry(checkpoint, head, file, loaded.runtimes.default)
    text = entry_text(entry.target, entry.unknown, file)
    findings = entry_findings(entry, checkpoint, head, loaded)
    if not wants_json():
        print_findings(findings, err=True)
    if output is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_output(file, text.encode())
    if wants_json():
        print_json(
            {
                "id": entry.target.id,
                "file": str(file) if output else None,
                "unknown": entry.reasons,
                "text": text,
                "findings": findings_in_context(findings),
            }
        )
    elif output is None:
        click.echo(text, nl=False)
    else:
        print_status(f"wrote {file}; unknown: {', '.join(entry.reasons)}")
        pair = "+".join(filter(None, (entry.target.short_name, entry.target.default_drafter)))
        words = ("peagle", "--catalog", str(file.parent.parent), "plan", pair)
        print_status("Next", command_text(words))


_REFRESH_OPTIONS = (
    option("--images", "Images of vLLM, from the SageMaker SDK's table.", bool),
    option("--digests", "Digests of the images, from ECR.", bool),
    option("--prices", "Prices of hosting, from the Pricing API.", bool),
    option("--region regions", "Region of the prices; may be repeated.  [default: regions with a "
           "price in the catalogue]", multiple=True),
    option("--to DIR", "Folder for the tables.  [default: peagle --catalog DIR, else the bundled "
           "catalogue]", click.Path(file_okay=False, path_type=Path)),
    option("--dry-run", "Show the changes and exit.", bool),
)  # fmt: skip


@command("peagle catalog refresh --prices --region eu-west-1", of=catalog)
@add_options(_REFRESH_OPTIONS)
@yes_option
@account_options
@click.pass_context
def refresh(
    ctx: click.Context,
    /,
    session: Session,
    regions: tuple[str, ...],
    to: Path | None,
    dry_run: bool,
    **selected: bool,
) -> None:
    """Update the catalogue's images, digests and prices.

    Updates everything unless you select parts. The changes are shown, and nothing is written before
    you confirm. With --json nothing is written without --yes. A part that cannot be read stays
    unchanged. Exits with 4 if AWS rejected a request or did not answer, and with 2 if credentials
    or a package are missing.
    """
    from peagle.aws.refresh import PARTS, Part, refresh_tables, table_changes  # imports boto3
    from peagle.cli.view.choose import print_changes

    own_folder = ctx.find_root().params.get("catalog_folder")  # it may be empty
    if to is None and own_folder is None and session.sandbox:
        message = "responses of the sandbox must not go into the bundled catalogue"
        raise UserError(message, "add --to DIR")
    folder = to or Path(own_folder or data_folder("model_catalog"))
    loaded = load_catalog(folder)
    before = Tables(loaded.runtimes, loaded.instances)
    parts: list[Part] = [part for part in PARTS if selected[part]] or list(PARTS)
    session.start()
    if not regions:
        types = loaded.instances.instances
        priced = {price.region for instance in types for price in instance.prices}
        regions = tuple(sorted(priced or {DEFAULT_REGION}))
    first = cache(lambda: session.aws(regions[0]))  # the account is looked up once, when needed
    refreshed = refresh_tables(before, parts, regions, lambda region: first().in_region(region))
    failures = list(refreshed.failed.values())
    # One reason for all parts, such as missing credentials, is the error that follows.
    is_one_reason = len(failures) == len(parts) and len({*map(str, failures)}) == 1
    texts = new_texts(before, refreshed.tables)
    changes = tuple(table_changes(before, refreshed.tables))
    if not wants_json():
        print_findings(() if is_one_reason else refreshed.findings, err=True)
        print_changes(changes)
    written: list[Path] = []
    fix = Fix("review the changes above, then pass --yes", (*typed_command(), "--yes"))
    question = f"Write these changes to {folder}?"
    if texts and not dry_run and (is_set("yes") or (not wants_json() and confirmed(question, fix))):
        written = write_texts(folder, texts)
    if wants_json():
        print_json(
            {
                "folder": str(folder),
                "changes": changes,
                "findings": findings_in_context(refreshed.findings),
                "failed": list(refreshed.failed),
                "written": written,
            }
        )
    elif changes:
        print_status("\n".join(f"wrote {path}" for path in written) or "Nothing was written.")
    elif not failures:
        print_status("The catalogue is up to date; nothing to write.")
    if failures:
        raise failures[0]
