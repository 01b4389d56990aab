"""Fit the performance model's constants to the evidence, and show the errors of its estimates.

    python -m measurements.speed_model            # tables of errors
    python -m measurements.speed_model --rows     # and the errors of each row
    python -m measurements.speed_model --write    # and speed_model.yaml and docs/estimates.md

The errors are those of rows that neither constants nor corrections know (``speed_errors``): all
rows of a GPU, of a pair, of one setting (drafter and K) of a pair on a GPU, of one request size
there, of another vLLM version; and published rows, of which only the pair may be known. The regret
of a choice: how much slower the setting with the best estimate is than the best measured one of the
same pair, GPU, request size and load.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from measurements.speed_errors import (
    HELD_OUT,
    Compared,
    Errors,
    conversation_rows,
    errors_of,
    held_out,
    not_fitted,
    published,
    refitted,
    regrets_beside_measured,
    repeated,
)
from measurements.speed_fit import fitted
from measurements.speed_rows import Row, catalog, rows
from peagle.catalog.tables import SpeedModel

FILE = Path(__file__).parents[1] / "model_catalog" / "speed_model.yaml"
CHAPTER = FILE.parents[1] / "docs" / "estimates.md"
SCRIPT = "measurements/speed_model.py"

HEADER = """\
| rows | n | tokens/s: median | 90 % below | in range | TTFT | ITL | regret; above 5 %, interval |
|---|---|---|---|---|---|---|---|"""


_BY_SETTING = "one setting left out"
"""The rows of which plans choose the setting, from estimates alone or beside measured rows."""

_BY_PLACE = "one pair left out"
"""The rows that differ most between pairs: docs/estimates.md has a line for each pair and GPU."""


def summaries(compared: dict[str, list[Compared]]) -> list[Errors]:
    """One line of errors for each kind of row, and for each pair and GPU of ``_BY_PLACE``."""
    lines = []
    for name, compared_rows in compared.items():
        if compared_rows:
            lines.append(errors_of(name, compared_rows))
        if name in HELD_OUT:
            if name == _BY_SETTING:
                beside = tuple(regrets_beside_measured(compared_rows))
                name_beside = f"{name}, the others of a choice measured"
                lines.append(replace(errors_of(name_beside, compared_rows), regrets=beside))
            turns = [row for row in compared_rows if isinstance(row.row, Row) and row.row.cached]
            lines += [errors_of(f"{name}: conversations", turns)] if turns else []
        if name == _BY_PLACE:
            lines += by_place(name, compared_rows)
    return lines


def by_place(name: str, compared_rows: Sequence[Compared]) -> Iterator[Errors]:
    """The errors of these rows by pair and GPU."""
    for place in sorted({(compared.row.pair, compared.row.gpu) for compared in compared_rows}):
        part = [
            compared for compared in compared_rows if (compared.row.pair, compared.row.gpu) == place
        ]
        yield errors_of(f"{name}: {', '.join(place)}", part)


def details(compared: dict[str, list[Compared]]) -> Iterable[str]:
    """The errors by pair and GPU, and the choices that lose more than 5 %."""
    for name, compared_rows in compared.items():
        yield from (errors.markdown for errors in by_place(name, compared_rows))
    yield ""
    for name, compared_rows in compared.items():
        bad = [errors for errors in errors_of(name, compared_rows).regrets if errors.loss > 0.05]
        for choice in sorted(bad, key=lambda errors: -errors.loss):
            within = ", within the measurements' interval" if choice.within else ""
            yield (
                f"{name}: {choice.place}: {choice.chosen} for {choice.best}, "
                f"{choice.loss:.1%}{within}"
            )


def row_errors(compared: dict[str, list[Compared]]) -> Iterator[str]:
    """The errors of each row, with their signs."""
    for name, compared_rows in compared.items():
        for compared_row in compared_rows:
            row = compared_row.row
            what = f"{row.pair}, {row.gpu}, {row.drafter} K={row.k}"
            sizes = f"{row.prompt} + {row.answer} tokens, {row.load}"
            errors = f"{compared_row.error:+.3f}"
            if row.first:
                errors += f", TTFT {compared_row.first_error:+.3f}"
            if row.between:
                errors += f", ITL {compared_row.between_error:+.3f}"
            yield f"{name}: {what}, {sizes}: {errors}"


def written(model: SpeedModel) -> str:
    """speed_model.yaml with these constants; the GPUs stay as they are."""
    gpus = FILE.read_text(encoding="utf-8").partition("\ngpus:\n")[2]
    ranges = ", ".join(f"{name}: {value}" for name, value in model.ranges.model_dump().items())
    lines = [
        f"# Written by {SCRIPT}, except for gpus: data sheets, dense rates without sparsity.",
        f"script: {SCRIPT}",
        f"fitted: {datetime.datetime.now(datetime.UTC).date().isoformat()}",
        f'vllm: "{model.vllm}"',
        "evidence:",
        *(
            f"  - {{file: {run.file}, pair: {run.pair}, gpu: {run.gpu}, rows: {run.rows}}}"
            for run in model.evidence
        ),
        "constants:",
        *(f"  {name}: {value:.2e}" for name, value in model.constants.model_dump().items()),
        f"decay: {model.decay}",
        f"ranges: {{{ranges}}}",
        "gpus:",
    ]
    return "\n".join(lines) + "\n" + gpus


def with_table(text: str, lines: Iterable[Errors]) -> str:
    """A document with a table of these lines in place of the one with the same header."""
    before, header, after = text.partition(HEADER)
    if not header:
        raise ValueError(f"the document has no table with the header {HEADER}")
    table = "\n".join([HEADER, *(errors.markdown for errors in lines)])
    return f"{before}{table}\n\n{after.partition(chr(10) * 2)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m measurements.speed_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--write", action="store_true", help=f"write {FILE.name} and the tables in the documents"
    )
    parser.add_argument("--rows", action="store_true", help="print the errors of each row")
    constants = catalog().speed_model
    of = [row for row in rows() if row.vllm == constants.vllm]
    options = parser.parse_args()
    model = fitted(of, refitted(constants, of))
    compared = {name: held_out(of, model, group) for name, group in HELD_OUT.items()}
    compared["conversations of peagle bench, not fitted"] = conversation_rows(of, model)
    compared["conversations of peagle bench, one pair left out"] = held_out(
        of, model, HELD_OUT[_BY_PLACE], rows(turns=True)
    )
    compared["conversations of peagle bench, by the same on another host"] = repeated(model)
    compared |= not_fitted(of, model)
    compared |= published(model)
    lines = summaries(compared)
    print(HEADER, *(errors.markdown for errors in lines), sep="\n")
    print("", *details(compared), sep="\n")
    if options.rows:
        print("", *row_errors(compared), sep="\n")
    if options.write:
        FILE.write_text(written(model), encoding="utf-8")
        chapter = with_table(CHAPTER.read_text(encoding="utf-8"), lines)
        CHAPTER.write_text(chapter, encoding="utf-8")
        print(f"wrote {FILE.name} and the table in {CHAPTER.name}")


if __name__ == "__main__":
    main()
