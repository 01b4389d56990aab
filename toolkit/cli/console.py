"""How commands speak: one JSON document on stdout with ``--json``, everything else for people."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """``--json``: one document on stdout and nothing else."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def print_json(document: Any) -> None:
    """The document, on stdout, with sorted-as-given keys and real characters."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


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
