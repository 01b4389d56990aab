"""Output of all commands: one JSON document with ``--json``, else tables, bars and findings."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from peagle.cli.context import fix_in_context

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from peagle.findings import Finding

FULL, EMPTY = "█", "░"
_PLAIN = {FULL: "#", EMPTY: "."}


def bar(parts: Iterable[tuple[str, float]], whole: float, width: int) -> Text:
    """A bar of ``parts`` (style and size, in the unit of ``whole``), then the remainder.

    ``width`` is in characters: blocks, or ``#`` and ``.`` if stdout cannot encode blocks.
    """
    from rich.text import Text

    sized = list(parts)
    whole = max(whole, sum(size for _, size in sized))
    full, empty = _shown(FULL), _shown(EMPTY)
    text, drawn, filled = Text(), 0, 0.0
    for style, size in sized:
        filled += size
        upto = round(width * filled / whole)
        text.append(full * (upto - drawn), style)
        drawn = upto
    return text.append(empty * (width - drawn), "dim")


def _shown(block: str) -> str:
    try:
        block.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return _PLAIN[block]
    return block


Command = TypeVar("Command", bound=Callable[..., Any])

TYPED_AT = "peagle.typed_at"
"""Key in click's ``Context.meta``: the start of the command, in epoch seconds."""

_PADDING = re.compile(r" +$", re.MULTILINE)


def json_option(command: Command) -> Command:
    """Add ``--json``: one document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def print_json(document: Any) -> None:
    """Print the document to stdout, in UTF-8 characters if stdout can encode them."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(document, indent=2)
    click.echo(text)


def make_console(pipe_width: int) -> Console:
    """A console on stdout, as wide as the terminal or ``COLUMNS``, else ``pipe_width``.

    Without a terminal, rich's trailing blanks are removed.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else pipe_width
    return Console(highlight=False, width=width, file=_Unpadded(sys.stdout))  # type: ignore[arg-type]


class _Unpadded:
    """A stream without trailing blanks; rich writes whole lines at a time."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(message: str) -> None:
    """Print a message to stderr, which keeps stdout for results."""
    click.echo(message, err=True)


def colour(level: str) -> str:
    """The colour of a finding's level."""
    return {"error": "red", "warning": "yellow", "note": "cyan"}[level]


def show_findings(findings: Any) -> None:
    """One line per finding on stderr: level, where, message, fix."""
    for finding in findings:
        level = click.style(f"{finding.level}:", fg=colour(finding.level), bold=True)
        fix = fix_in_context(finding.fix, finding.command)
        message = f"{finding.message} ({fix})" if fix else finding.message
        say(f"{level} {where_text(finding.where)}: {message} [{finding.code}]")


_INDENT = " " * 9

_FLAGS = frozenset(
    {
        "instance_count", "instance_type", "k", "max_model_len", "max_price_per_hour",
        "min_tokens_per_second", "model_source", "weights_by",
    }
)  # fmt: skip
"""Values of ``Finding.where`` that are planning options."""


def where_text(where: str) -> str:
    """``Finding.where`` for people: planning options as flags, such as ``--instance-type``."""
    return f"--{where.replace('_', '-')}" if where in _FLAGS else where


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print every finding with its code, location, message and fix."""
    from rich.markup import escape

    for finding in findings:
        level = f"[bold {colour(finding.level)}]{finding.level:<8}[/]"
        console.print(f"{level} [bold]{finding.code}[/] ({escape(where_text(finding.where))})")
        _indented(console, finding.message)
        if finding.fix or finding.command:
            fix = fix_in_context(finding.fix, finding.command)
            _indented(console, f"fix: {fix}")


def _indented(console: Console, text: str) -> None:
    """Print indented text; addresses and commands are not broken at hyphens."""
    from rich.markup import escape

    width = console.width - len(_INDENT)
    for line in wrap(text, width, break_long_words=False, break_on_hyphens=False):
        console.print(f"{_INDENT}{escape(line)}", soft_wrap=True)
