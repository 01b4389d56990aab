"""Findings for people: level, code, where; what is wrong; and how to mend it."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import wrap

from rich.console import Console
from rich.markup import escape

from toolkit.cli.console import colour
from toolkit.findings import Finding

_INDENT = " " * 9

_NOTHING = "nothing is to be done"
"""So begins what a finding says that needs no mending."""


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """All of them, one after the other."""
    for finding in findings:
        level = f"[bold {colour(finding.level)}]{finding.level:<8}[/]"
        console.print(f"{level} [bold]{finding.code}[/] ({escape(finding.where)})")
        _indented(console, finding.message)
        if finding.fix and not finding.fix.startswith(_NOTHING):
            _indented(console, f"mend: {finding.fix}")


def _indented(console: Console, text: str) -> None:
    """The text below the code; addresses and commands are not broken at hyphens."""
    width = console.width - len(_INDENT)
    for line in wrap(text, width, break_long_words=False, break_on_hyphens=False):
        console.print(f"{_INDENT}{escape(line)}", soft_wrap=True)
