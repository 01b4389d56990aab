"""What ``peagle bench PAIR --sweep`` prints and writes: the table, evidence and the report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from peagle import api
from peagle.bench.acceptance import LosslessResult, SweepLossless
from peagle.bench.models import BenchResult
from peagle.cli.context import command_text
from peagle.cli.options import command_catalog
from peagle.cli.output.bench import print_sweep
from peagle.cli.output.bench_text import print_lossless
from peagle.cli.output.console import print_json, print_line
from peagle.errors import UserError
from peagle.speed.slo import Slo
from peagle.store import write_output


def check_outputs(given: dict[str, Any]) -> None:
    """Raise UserError, before anything is measured, for a path of --output, --report or --save
    that cannot be written."""
    for flag, path in (("--output", given["output"]), ("--report", given["report_file"])):
        if path is not None and path.is_dir():
            raise UserError(f"{flag} {path} is a folder", "name a file in it", "not-writable")
        if path is not None:
            _check_folder(flag, path, path.parent, "use another file")
    if given["report_file"]:
        api.require_report()
    if given["save"]:
        _check_folder("--save", given["save"], given["save"] / "evidence", "name a folder")


def _check_folder(flag: str, path: Path, folder: Path, fix: str) -> None:
    """Raise UserError unless ``folder`` exists or can be made."""
    nearest = next(one for one in (folder, *folder.parents) if os.access(one, os.F_OK))
    why = ""
    if not nearest.is_dir():
        why = f"{nearest} is a file"
    elif not os.access(nearest, os.W_OK):
        why = f"{nearest} is not writable"
    if why:
        raise UserError(f"{flag} {path} cannot be written: {why}", fix, "not-writable")


def write_outputs(
    ctx: click.Context,
    given: dict[str, Any],
    file: Path,
    result: BenchResult,
    lossless: SweepLossless | None,
) -> None:
    """Print the result, and write evidence and report as asked. Raises UserError for a file that
    cannot be written, and NotProved for a setting that changes an answer; the result is printed in
    any case."""
    slo: Slo | None = given["slo"]
    result = api.priced_result(result, command_catalog(ctx))
    compared = lossless.results if lossless else ()
    if not given["as_json"]:
        # Before anything is written, so that a failure there hides no measurement.
        print_sweep(result, api.summaries(result, slo))
        print_line(f"Result:   {file}")
    written: dict[str, str | None] = {"file": str(file), "report": None, "evidence": None}
    try:
        _write(given, result, slo, written)
    finally:
        if given["as_json"]:
            answers = {"lossless": [one.document() for one in compared]}
            summary = {"summary": api.summaries(result, slo)}
            print_json({**result.document(), **summary, **written, **answers})
    if not given["as_json"]:
        if written["evidence"]:
            print_line(f"Evidence: {written['evidence']}")
            pair = result.server.pair or given["pair"]
            plan = ("peagle", "--catalog", str(given["save"]), "plan", pair)
            print_line("Plan with it", command_text(plan, ctx))
        if written["report"]:
            print_line(f"Report:   {written['report']}")
        for one in compared:
            print_lossless(one)
    _require_lossless(compared)


def _write(
    given: dict[str, Any], result: BenchResult, slo: Slo | None, written: dict[str, str | None]
) -> None:
    """Write report and evidence as asked; ``written`` gets the path of each that is written."""
    if html := given["report_file"]:
        _make_folder(html.parent)
        write_output(html, api.report(result, slo).encode())
        written["report"] = str(html)
    if given["save"]:
        try:
            written["evidence"] = str(api.save_evidence(result, given["save"]))
        except OSError as error:
            raise _not_written(given["save"], error) from error


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(path: Path, error: OSError) -> UserError:
    return UserError(
        f"{path} cannot be written: {error.strerror}", "check the path", "not-writable"
    )


def _require_lossless(compared: Sequence[LosslessResult]) -> None:
    """Raise NotProved for the first setting that changes an answer."""
    for one in compared:
        api.require_lossless(one)
