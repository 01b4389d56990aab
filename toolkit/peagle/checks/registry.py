"""What a rule is; finds the rules and runs them."""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal

from peagle import findings
from peagle.case import Case
from peagle.catalog.tables import VersionRule, applicable_rules
from peagle.checkpoints.heads import Head
from peagle.checks import rules
from peagle.errors import Fix
from peagle.findings import Finding

About = Literal["head", "target", "load", "version", "hardware"]
Notices = Literal["at start", "on a request", "never"]
Findings = Iterator[Finding]
Check = Callable[[Case], Findings]

_KNOWN = "known-problem"
"""The rule whose findings have codes of their own, from the catalogue."""

_CAUSES = frozenset(
    {"head-not-a-drafter", "target-differs", "hidden-size-mismatch", "vocabulary-mismatch"}
)
"""Within a level, these findings come first, since they may cause others."""


@dataclass(frozen=True)
class Rule:
    """One rule. Its file is named after ``code`` and has the function ``check``.

    ``about`` is what it looks at; ``vllm_notices``: whether and when vLLM itself rejects what the
    rule rejects.
    """

    code: str
    about: About
    vllm_notices: Notices

    @property
    def guards(self) -> str:
        """The first sentence of its file: what it guards against."""
        guards, _, _ = (self._module.__doc__ or "").strip().partition("\n\n")
        return " ".join(guards.split()).replace("``", "`")

    @property
    def check(self) -> Check:
        """Yields the findings of a case."""
        check: Check = self._module.check
        return check

    @property
    def _module(self) -> ModuleType:
        return _module_of(self.code)

    def error(self, where: str, message: str, fix: str | Fix) -> Finding:
        """A finding that prevents any change."""
        return findings.error(self.code, where, message, fix)

    def warning(self, where: str, message: str, fix: str | Fix) -> Finding:
        """A finding to read before anything is created."""
        return findings.warning(self.code, where, message, fix)

    def note(self, where: str, message: str, fix: str | Fix) -> Finding:
        """A finding for information."""
        return findings.note(self.code, where, message, fix)

    def entries(self, case: Case) -> tuple[VersionRule, ...]:
        """The entries of version_rules.yaml for this rule and the case's vLLM version."""
        return applicable_rules(case.version_rules, self.code, case.runtime.vllm)

    def by_version(self, case: Case, where: str, who: str) -> Findings:
        """A finding about ``who`` for each entry of the case's vLLM version."""
        return (self.of_entry(entry, where, who) for entry in self.entries(case))

    def of_entry(self, entry: VersionRule, where: str, who: str, fix: str | Fix = "") -> Finding:
        """An entry of version_rules.yaml as a finding about ``who``."""
        message = f"{who}: {entry.summary} ({entry.source})"
        return findings.finding(entry.level, self.code, where, message, fix or entry.fix)


@cache
def _module_of(code: str) -> ModuleType:
    return import_module(f"{rules.__name__}.{code.replace('-', '_')}")


def for_head(check: Callable[[Case, Head], Findings]) -> Check:
    """A check that needs the head's config.json; without one it yields nothing."""

    @functools.wraps(check)
    def check_case(case: Case) -> Findings:
        if case.head is not None:
            yield from check(case, case.head)

    return check_case


@cache
def rules_found() -> tuple[Rule, ...]:
    """All rules, in the order of their codes."""
    names = (info.name for info in pkgutil.iter_modules(rules.__path__))
    found: Iterator[Rule] = (import_module(f"{rules.__name__}.{name}").RULE for name in names)
    return tuple(sorted(found, key=lambda rule: rule.code))


def check(
    case: Case, *, about: About | None = None, only: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """The findings of the rules, errors first, causes before their consequences.

    ``about`` and ``only`` select rules by subject and by code. Raises CheckpointError for a
    config.json with invalid numbers.
    """
    by_rule = {
        rule.code: tuple(rule.check(case))
        for rule in rules_found()
        if about in (None, rule.about) and (only is None or rule.code in only)
    }
    # A rule that looked at the case replaces the catalogue's own text on a problem.
    reported = {f.code for code, found in by_rule.items() if code != _KNOWN for f in found}
    found = dict.fromkeys(
        finding
        for code, findings in by_rule.items()
        for finding in findings
        if code != _KNOWN or finding.code not in reported
    )
    return tuple(sorted(found, key=lambda f: (findings.severity(f), f.code not in _CAUSES)))
