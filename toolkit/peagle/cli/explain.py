"""``peagle explain``: what a code of a finding or an error means, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import click

from peagle.cli.context import PeagleCommand
from peagle.cli.view.console import json_option, print_facts, print_json, print_line
from peagle.data import data_folder
from peagle.errors import NotFound, nearest

_CELLS = re.compile(r"(?<!\\) ?\| ?")
_MARKDOWN = re.compile(r"\\([\\`*_|<>\[\]])|(?<![\w*])\*(?=\S)|(?<=\S)\*(?![\w*])")
_LISTING = "docs/errors.md"


class Explanation(NamedTuple):
    """One row of the list of codes. ``severity`` is a finding's; ``about`` is the heading that the
    row is below, which has the exit code of an error."""

    code: str
    about: str
    severity: str | None
    cause: str | None
    fix: str | None


@click.command(cls=PeagleCommand, epilog="Example: peagle explain fc-width")
@click.argument(
    "code", shell_complete=lambda _, __, typed: [c for c in _codes() if c.startswith(typed)]
)
@json_option
def explain(code: str, as_json: bool) -> None:
    """Show the cause and the fix of CODE: that of a finding, of an error with --json, or of an
    engine that ended.

    What only the case at hand knows is in the message itself.
    """
    rows = [row for row in read_explanations() if row.code == code]
    if not rows:
        raise NotFound(
            f"there is no code {code!r}",
            nearest(code, _codes()) or f"{_LISTING} has all codes; AWS's own are in its documents",
            code="unknown-code",
        )
    if as_json:
        print_json({"code": code, "explanations": [row._asdict() for row in rows]})
        return
    for row in rows:
        print_line(f"{code}: {row.severity or row.about}", bold=True)
        about = row.about if row.severity else ""
        print_facts(
            [("about", about), ("cause", row.cause or ""), ("fix", row.fix or "")], err=False
        )


def _codes() -> list[str]:
    return list(dict.fromkeys(row.code for row in read_explanations()))


def read_explanations() -> Iterator[Explanation]:
    """The rows of all tables of the chapter on errors, which ships with the toolkit."""
    text = (data_folder("docs") / "errors.md").read_text(encoding="utf-8")
    about, headings = "", list[str]()
    for line in text.splitlines():
        if line.startswith("## "):
            about, headings = line.removeprefix("## "), []
        cells = [_plain(cell) for cell in _CELLS.split(line)[1:-1]]
        if not cells or set(cells[0]) <= {"-"}:
            continue
        if not headings:
            headings = cells
            continue
        row = dict(zip(headings, cells, strict=False))
        code = re.match(r"`([^`]+)`", cells[0])
        if code:
            cause = row.get("cause") if headings[0] != "cause" else None
            yield Explanation(code[1], about, row.get("severity"), cause, row.get("fix") or None)


def _plain(cell: str) -> str:
    """A cell without the marks of Markdown."""
    return _MARKDOWN.sub(lambda mark: mark[1] or "", cell).strip()
