"""Findings: what a check reports about an option, a file or a pair; and fixes, their remedies."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal, get_args

from peagle.errors import Fix, Refused
from peagle.frozen import Frozen

Level = Literal["error", "warning", "note"]
"""An error prevents any change; a warning should be read before one; a note is information."""

_LEVELS = get_args(Level)


class Finding(Frozen):
    """``where`` names the option, file or key; ``fix``, ``command`` and ``options`` are as in
    Fix."""

    code: str
    level: Level
    where: str
    message: str
    fix: str
    command: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()


def finding(level: Level, code: str, where: str, message: str, fix: str | Fix) -> Finding:
    """A finding of this level."""
    remedy = fix if isinstance(fix, Fix) else Fix(fix)
    return Finding(
        code=code,
        level=level,
        where=where,
        message=message,
        fix=remedy.sentence,
        command=remedy.command or None,
        options=remedy.options,
    )


error = partial(finding, "error")
"""A finding that prevents any change."""

warning = partial(finding, "warning")
"""A finding to read before anything is created."""

note = partial(finding, "note")
"""A finding for information."""


def severity(finding: Finding) -> int:
    """Sort key: errors before warnings before notes."""
    return _LEVELS.index(finding.level)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that prevent creating anything."""
    return [finding for finding in findings if finding.level == "error"]


def refuse_errors(findings: Iterable[Finding]) -> None:
    """Raise Refused with the first error."""
    for finding in errors(findings)[:1]:
        fix = Fix(finding.fix, finding.command or (), finding.options)
        raise Refused(f"{finding.where}: {finding.message}", fix, finding.code)
