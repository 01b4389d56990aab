"""``peagle check`` as text: findings, checkpoints that were read, and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from peagle.checks import Rule
from peagle.cli.context import command_text
from peagle.cli.output.console import indented, make_console, print_findings

if TYPE_CHECKING:
    from peagle.checks.report import CheckReport

_INDENT = 9

_RULE_HEADINGS = ("rule", "about", "rejected by vLLM", "what it prevents")

_NARROW = 90
"""Terminal width below which the table of rules has two columns."""


def print_report(report: CheckReport, seconds: float) -> None:
    """Print the report, which took ``seconds``, on stdout."""
    console = make_console()
    console.print(f"[bold]{escape(report.pair)}[/] on vLLM {report.case.runtime.vllm}\n")
    for finding in report.findings:
        print_findings(console, [finding])
        console.print()
    for checkpoint in report.read:
        headers = "" if checkpoint.tensors is not None else ", no weights there"
        console.print(
            f"read     {escape(checkpoint.location)} ({checkpoint.bytes_read:,} bytes{headers})",
            soft_wrap=True,
        )
    if report.unread:
        what = (
            f"the {' and the '.join(report.unread)}: only the catalogue's numbers were checked; to "
            "read the files:"
        )
        text = f"not read {indented(what, console.width, _INDENT)}"
        console.print(escape(text), soft_wrap=True)
        console.print(f"{' ' * _INDENT}{escape(command_text(report.read_command))}", soft_wrap=True)
    total = sum(checkpoint.bytes_read for checkpoint in report.read)
    console.print(
        f"checked  {report.rules} rules in {seconds:.2f} s, {total:,} bytes read: "
        f"{_verdict(report)}"
    )


def print_rules(rules: Sequence[Rule]) -> None:
    """All rules as a table; on a narrow terminal without subject and vLLM's own check."""
    console = make_console()
    narrow = console.width < _NARROW
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    headings = ("rule", "what it prevents") if narrow else _RULE_HEADINGS
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading == "rule")
    for rule in rules:
        between = () if narrow else (rule.about, rule.vllm_notices)
        table.add_row(rule.code, *between, escape(rule.guards))
    console.print(table)


def _verdict(report: CheckReport) -> str:
    """``2 errors, 1 note``, or ``nothing wrong`` and what that is limited to."""
    findings = report.findings
    counts = [
        f"{count} {level}{'s' if count > 1 else ''}"
        for level in ("error", "warning", "note")
        if (count := sum(finding.level == level for finding in findings))
    ]
    text = ", ".join(counts)
    if any(finding.level == "error" for finding in findings):
        return text
    if not report.read:
        limit = " in the catalogue's values"
    elif report.unread or any(checkpoint.tensors is None for checkpoint in report.read):
        limit = " in what was read"
    else:
        limit = ""
    return f"no problems found{limit}{f' ({text})' if text else ''}"
