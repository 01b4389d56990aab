"""How commands speak: one JSON document on stdout with ``--json``, everything else for people."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])

TYPED_AT = "peagle.typed_at"
"""Key in click's ``Context.meta``: when the command was typed, in epoch seconds."""

_PADDING = re.compile(r" +$", re.MULTILINE)


def json_option(command: Command) -> Command:
    """``--json``: one document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def print_json(document: Any) -> None:
    """The document, on stdout, with sorted-as-given keys and real characters where it has them."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        text = json.dumps(document, indent=2)
    click.echo(text)


def paper(pipe_width: int) -> Console:
    """Where tables are printed: stdout, as wide as the terminal or ``COLUMNS`` says, else
    ``pipe_width``. Where no terminal is, the blanks with which rich fills its lines are left out.
    """
    from rich.console import Console

    if sys.stdout.isatty():
        return Console(highlight=False)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else pipe_width
    return Console(highlight=False, width=width, file=_Unpadded(sys.stdout))  # type: ignore[arg-type]


class _Unpadded:
    """A stream without blanks at the ends of lines; rich writes whole lines at a time."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def say(message: str) -> None:
    """Progress and remarks go to stderr, so that stdout stays clean."""
    click.echo(message, err=True)


def colour(level: str) -> str:
    """The colour of a finding's level."""
    return {"error": "red", "warning": "yellow", "note": "cyan"}[level]


def show_findings(findings: Any) -> None:
    """One line per finding on stderr: level, where, message, fix."""
    for finding in findings:
        level = click.style(f"{finding.level}:", fg=colour(finding.level), bold=True)
        say(f"{level} {finding.where}: {finding.message} ({finding.fix}) [{finding.code}]")
