"""``peagle catalog init``: a catalogue file for a model, from config.json and weight headers."""

from __future__ import annotations

from pathlib import Path

import click

from peagle.catalog.writing import entry_text
from peagle.checkpoints.models import Checkpoint
from peagle.cli.context import PeagleCommand, command_text, findings_in_context
from peagle.cli.options import OutputPath, command_catalog
from peagle.cli.session import Session, cloud_options
from peagle.cli.view.console import (
    json_option,
    print_findings,
    print_json,
    print_status,
)
from peagle.errors import UserError
from peagle.planning.runtime import DEFAULT_REGION
from peagle.store import write_output
from peagle.weights.layout import checkpoint_at
from peagle.weights.new_entry import entry_file, entry_findings, new_entry


@click.command(
    cls=PeagleCommand,
    epilog="""\b
Examples:
  peagle catalog init Qwen/Qwen3-4B -o my-catalog
  peagle catalog init ./my/model --drafter ./my/head -o my-catalog/acme/chat-7b.yaml
""",
)
@click.argument("model")
@click.option(
    "--drafter", metavar="HEAD", help="An EAGLE-3 or P-EAGLE head for it: folder, s3://..., Hub id."
)
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR",
    type=OutputPath(),
    help="ORGANIZATION/MODEL.yaml, which is the entry's id, or the folder of a catalogue.  "
    "[default: print it]",
)
@click.option("--force", is_flag=True, help="Replace the file.")
@cloud_options
@json_option
@click.pass_context
def init(
    ctx: click.Context,
    /,
    model: str,
    drafter: str | None,
    output: Path | None,
    force: bool,
    session: Session,
    as_json: bool,
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
        other = "folder" if file != output else "file"
        raise UserError(
            f"{file} exists", f"use another {other} with -o, or add --force", code="file-exists"
        )
    catalog = command_catalog(ctx)
    checkpoint, head = read(model), read(drafter) if drafter else None
    entry = new_entry(checkpoint, head, file, catalog.runtimes.default)
    text = entry_text(entry.target, entry.unknown, entry.missing, file)
    findings = entry_findings(entry, checkpoint, head, catalog)
    if output is not None:
        if not as_json:
            print_findings(findings, err=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_output(file, text.encode())
    if as_json:
        print_json(
            {
                "id": entry.target.id,
                "file": str(file) if output else None,
                "unknown": entry.reasons,
                "text": text,
                "findings": [
                    finding.model_dump(mode="json") for finding in findings_in_context(findings)
                ],
            }
        )
        return
    if output is None:
        print_findings(findings, err=True)
        click.echo(text, nl=False)
        return
    print_status(f"wrote {file}; unknown: {', '.join(entry.reasons)}")
    pair = "+".join(filter(None, (entry.target.short_name, entry.target.default_drafter)))
    words = ("peagle", "--catalog", str(file.parent.parent), "plan", pair)
    print_status("Next", command_text(words))
