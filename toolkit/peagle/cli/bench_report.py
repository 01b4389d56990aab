"""``peagle bench report``: the HTML report of a result or of evidence."""

from __future__ import annotations

from pathlib import Path

import click

from peagle import api
from peagle.cli.context import PeagleCommand
from peagle.cli.options import USD, OutputPath, command_catalog
from peagle.cli.output.console import json_option, print_json, print_written
from peagle.store import write_output


@click.command(
    "report",
    cls=PeagleCommand,
    epilog="Example: peagle bench report result.json -o report.html",
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=OutputPath(),
    metavar="FILE",
    help="The report.  [default: FILE with the ending .html]",
)
@click.option(
    "--slo", metavar="TIMES", help="Longest mean times in seconds, such as ttft=0.5,itl=0.02."
)
@click.option(
    "--price-per-hour",
    type=USD,
    metavar="USD",
    help="Price of the GPUs.  [default: the result's, or the catalogue's]",
)
@json_option
def bench_report(
    file: Path, output: Path | None, slo: str | None, price_per_hour: float | None, as_json: bool
) -> None:
    """Write the HTML report of FILE, a result of bench or evidence with speeds.

    One file with plots and tables, which loads nothing from elsewhere.
    """
    result, intervals = api.read_result(file)
    result = api.priced_result(result, command_catalog(), price_per_hour)
    path = output or file.with_suffix(".html")
    text = api.report(result, api.parse_slo(slo) if slo else None, intervals)
    write_output(path, text.encode())
    if as_json:
        print_json({"report": str(path), "bytes": len(text.encode())})
    else:
        print_written(path)
