"""``peagle check`` as text: findings, checkpoints that were read, and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from peagle.checks import Rule
from peagle.cli.context import command_text
from peagle.cli.output.console import print_facts, print_findings, print_line, print_table

if TYPE_CHECKING:
    from peagle.checks.report import CheckReport

_RULE_HEADINGS = ("rule", "about", "rejected by vLLM", "what it prevents")


def print_report(report: CheckReport, seconds: float) -> None:
    """Print the report, which took ``seconds``, on stdout."""
    print_line(f"{click.style(report.pair, bold=True)} on vLLM {report.case.runtime.vllm}\n")
    print_findings(report.findings)
    facts: list[tuple[str, str | tuple[str, str]]] = []
    for checkpoint in report.read:
        headers = "" if checkpoint.tensors is not None else ", no weights there"
        facts.append(("read", f"{checkpoint.location} ({checkpoint.bytes_read:,} bytes{headers})"))
    if report.unread:
        unread = f"the {' and the '.join(report.unread)}: only the catalogue's numbers were checked"
        to_read = command_text(report.read_command)
        facts.append(("not read", (f"{unread}; to read the files", to_read)))
    total = sum(checkpoint.bytes_read for checkpoint in report.read)
    verdict = f"{report.rules} rules in {seconds:.2f} s, {total:,} bytes read: {_verdict(report)}"
    print_facts([*facts, ("checked", verdict)], indent=0, err=False)


def print_rules(rules: Sequence[Rule]) -> None:
    """All rules as a table."""
    rows = ((rule.code, rule.about, rule.vllm_notices, rule.guards) for rule in rules)
    print_table(_RULE_HEADINGS, rows)


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
