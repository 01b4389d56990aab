"""Output of all commands: one JSON document with ``--json``, else text, tables, findings, files.

Tables fit narrow terminals: columns are dropped as a whole, and no word is broken.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from peagle.cli.context import changed_command, fix_in_context
from peagle.errors import Fix, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from peagle.findings import Finding

Command = TypeVar("Command", bound=Callable[..., Any])

Row = tuple[str, ...]

STARTED_AT = "peagle.typed_at"
"""Key in click's ``Context.meta``: the start of the command, in epoch seconds."""

UNLIMITED = 10_000
"""The width of a pipe, which another program may read: nothing is dropped or wrapped."""

_COLORS = {"error": "red", "warning": "yellow", "note": "cyan"}
_GAP = 2
_INDENT = 9
_PADDING = re.compile(r" +$", re.MULTILINE)

_FLAGS = frozenset(
    {
        "cached_prompt_tokens", "copies", "instance_count", "instance_type", "k", "max_model_len",
        "max_price_per_hour", "min_tokens_per_second", "model_source", "output_tokens",
        "prompt_tokens", "requests", "shared_prompt_tokens", "slo", "weights_by", "within",
        "workload",
    }
)  # fmt: skip
"""Values of ``Finding.where`` that are planning options."""


def json_option(command: Command) -> Command:
    """Add ``--json``: one document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def print_json(document: Any) -> None:
    """Print the document to stdout, in UTF-8 characters if stdout can encode them."""
    encodable = can_print(text := json.dumps(document, indent=2, ensure_ascii=False))
    click.echo(text if encodable else json.dumps(document, indent=2))


def can_print(text: str) -> bool:
    """Whether stdout can encode ``text``."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_line(text: str, command: str = "", bold: bool = False) -> None:
    """Print a text to stdout, as wide as the terminal; a command at its end is not broken."""
    lines = folded(text, command, terminal_width())
    click.echo(click.style(lines, bold=True) if bold else lines)


def print_status(message: str, command: str = "") -> None:
    """Print a message to stderr, which keeps stdout for results. It is as wide as the terminal; a
    command at its end is not broken."""
    click.echo(folded(message, command, stderr_width()), err=True)


def print_written(path: Path) -> None:
    """Say on stderr that the file was written."""
    print_status(f"wrote {path}")


_PASS_YES = Fix("pass --yes", options=("--yes",))


def confirmed(question: str, fix: Fix = _PASS_YES) -> bool:
    """Ask on stderr. Raises UserError, with the fix, if stdin is not a terminal."""
    if not sys.stdin.isatty():
        raise UserError(
            "confirmation needed, but stdin is not a terminal", fix, code="confirmation-needed"
        )
    return click.confirm(question, err=True)


class Declined(UserError, code="declined"):
    """The answer to a question was not yes, and nothing was changed.

    Fix: answer y, or pass --yes.
    """


def confirm(question: str, declined: str, fix: Fix = _PASS_YES) -> None:
    """Raise UserError, with the message ``declined``, unless the user agrees."""
    if not confirmed(question, fix):
        raise Declined(f"{declined}; nothing was changed")


def make_console(pipe_width: int = 120) -> Console:
    """A console on stdout, as wide as the terminal or ``COLUMNS``, else ``pipe_width``.

    Without a terminal, rich's trailing blanks are removed.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    width = terminal_width(pipe_width)
    return Console(highlight=False, width=width, file=_Unpadded(sys.stdout))  # type: ignore[arg-type]


class _Unpadded:
    """A stream without trailing blanks; rich writes whole lines at a time."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show_findings(findings: Iterable[Finding]) -> None:
    """One line per finding on stderr, folded on a terminal: level, where, message, fix."""
    for finding in findings:
        level = click.style(f"{finding.level}:", fg=_COLORS[finding.level], bold=True)
        fix = fix_in_context(finding.fix, finding.command)
        start = f"{level} {where_text(finding.where)}: {finding.message}"
        line = f"{start} ({fix}) [{finding.code}]" if fix else f"{start} [{finding.code}]"
        if finding.command and len(click.unstyle(line)) > stderr_width():
            lines = [*wrapped(f"{start} [{finding.code}]", stderr_width())]
            lines += fix_lines(finding.fix, finding.command, stderr_width())
        else:
            lines = wrapped(line, stderr_width())
        click.echo("\n".join(lines), err=True)


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print every finding with its code, location, message and fix; of an error that options fix,
    also the user's command with them."""
    from rich.markup import escape

    for finding in findings:
        level = f"[bold {_COLORS[finding.level]}]{finding.level:<8}[/]"
        console.print(f"{level} [bold]{finding.code}[/] ({escape(where_text(finding.where))})")
        width = console.width - _INDENT
        fix = f"fix: {finding.fix}" if finding.fix else "fix"
        command = finding.command or None
        if finding.level == "error" and not command:
            command = changed_command(click.get_current_context(), finding.options)
        fixes = fix_lines(fix, command, width) if finding.fix or command else []
        for line in (*wrapped(finding.message, width), *fixes):
            console.print(f"{' ' * _INDENT}{escape(line)}", soft_wrap=True)


def fix_lines(fix: str, command: Sequence[str] | None, width: int) -> list[str]:
    """A fix in lines of ``width``. A command that does not fit beside the sentence has its own
    line, however long: a line break within its quotes would change it when it is pasted."""
    text = fix_in_context(fix, command)
    if not command or len(text) <= width:
        return wrapped(text, width)
    return [*wrapped(f"{fix}:", width), fix_in_context("", command)]


def message_with_fix(message: str, fix: str, command: Sequence[str] | None, width: int) -> str:
    """A message with its fix in parentheses, or below it where a command would be broken."""
    text = fix_in_context(fix, command)
    line = f"{message} ({text})" if text else message
    if not command or len(line) <= width:
        return folded(line, "", width)
    return "\n".join((*wrapped(message, width), *fix_lines(fix, command, width)))


def where_text(where: str) -> str:
    """``Finding.where`` for people: planning options as flags, such as ``--instance-type``."""
    return f"--{where.replace('_', '-')}" if where in _FLAGS else where


def terminal_width(pipe_width: int = UNLIMITED) -> int:
    """The width of the terminal or from ``COLUMNS``; else ``pipe_width``."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and len(columns) < 10 and int(columns):
        return int(columns)
    return _columns() if sys.stdout.isatty() else pipe_width


def _columns() -> int:
    import shutil  # loads the libraries of all archives, and output to a pipe does not need it

    return shutil.get_terminal_size().columns


def table_width(rows: Sequence[Row]) -> int:
    """The width of the table in characters, with two blanks between columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return sum(widths) + _GAP * (len(widths) - 1)


def fit_columns(
    rows: Sequence[Row], width: int, dispensable: Sequence[str]
) -> tuple[list[Row], Row]:
    """The rows (headings first) without as many ``dispensable`` columns as needed to fit, and the
    headings of the dropped columns."""
    kept, dropped = list(rows), []
    for heading in dispensable:
        if table_width(kept) <= width:
            break
        if heading in kept[0]:
            at = kept[0].index(heading)
            kept = [row[:at] + row[at + 1 :] for row in kept]
            dropped.append(heading)
    return kept, tuple(dropped)


def align_columns(rows: Sequence[Row], right: Collection[str] = ()) -> Iterator[str]:
    """One line per row; columns whose heading is in ``right`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [">" if heading in right else "<" for heading in rows[0]]
    for row in rows:
        cells = zip(row, sides, widths, strict=True)
        yield (" " * _GAP).join(f"{cell:{side}{width}}" for cell, side, width in cells).rstrip()


def hidden_columns(headings: Row) -> str:
    """A note on dropped columns; empty if none was dropped."""
    if not headings:
        return ""
    return f"Hidden columns (terminal too narrow): {', '.join(headings)}; --json shows all."


def wrapped(text: str, width: int) -> list[str]:
    """``text`` in lines of ``width``; words, addresses and commands are not broken, even if longer
    than a line."""
    return wrap(text, max(width, 1), break_long_words=False, break_on_hyphens=False)


def folded(text: str, command: str, width: int) -> str:
    """Each line of ``text`` in lines of ``width``; what continues it is indented by two more.

    A command that does not fit beside the text has its own line, however long.
    """
    *before, last = text.split("\n")
    whole = f"{last}: {command}" if command else last
    if not command or len(click.unstyle(whole)) <= width:
        return "\n".join(_continued(line, width) for line in (*before, whole))
    lines = [_continued(line, width) for line in (*before, f"{last}:")]
    return "\n".join((*lines, f"{_blanks(last)}  {command}"))


def _continued(line: str, width: int) -> str:
    if len(click.unstyle(line)) <= width:
        return line
    first, *others = wrapped(line, width)
    indent = f"{_blanks(line)}  "
    others = wrapped(" ".join(others), width - len(indent))
    return f"\n{indent}".join((first, *others))


def _blanks(line: str) -> str:
    """The blanks before the first word of a line."""
    return line[: len(line) - len(line.lstrip(" "))]


def indented(text: str, width: int, indent: int) -> str:
    """``text`` in lines of ``width``, all but the first indented."""
    return f"\n{' ' * indent}".join(wrapped(text, width - indent))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print labels and texts to stderr in two columns, as wide as the terminal."""
    width = stderr_width()
    for label, text in facts:
        click.echo(f"  {label:<12}{indented(text, width, 14)}", err=True)


def stderr_width() -> int:
    """The width of the terminal that shows stderr; a pipe gets every text in one line."""
    return _columns() if sys.stderr.isatty() else UNLIMITED
