"""What a rule is; finds the rules and runs them."""

from __future__ import annotations

import functools
import inspect
import pkgutil
from collections.abc import Callable, Collection, Iterator
from functools import cache
from importlib import import_module
from typing import Literal

from pydantic import Field

from peagle import findings
from peagle.case import Case
from peagle.catalog.tables import VersionRule, applicable_rules
from peagle.checks import rules
from peagle.errors import Fix
from peagle.findings import Finding
from peagle.frozen import Result

About = Literal["head", "target", "load", "version", "hardware"]
Notices = Literal["at start", "on a request", "never"]
Findings = Iterator[Finding]
Check = Callable[..., Findings]
"""A function of a case; or of a case and its head, for a rule that needs the head's config.json."""

_KNOWN = "known-problem"
"""The rule whose findings have codes of their own, from the catalogue."""

_CAUSES = frozenset(
    {"head-not-a-drafter", "target-differs", "hidden-size-mismatch", "vocabulary-mismatch"}
)
"""Within a level, these findings come first, since they may cause others."""


class Rule(Result):
    """One rule: a function that yields the findings of a case, without the code, and what it is.

    ``about`` is what it looks at; ``vllm_notices``: whether and when vLLM itself rejects what the
    rule rejects; ``guards``: what it guards against. ``fix`` is for a rule that has a single one.
    """

    code: str
    about: About
    vllm_notices: Notices
    guards: str
    function: Check = Field(exclude=True)
    needs_head: bool = Field(exclude=True)
    fix: str = Field(exclude=True)

    def check(self, case: Case) -> Findings:
        """Yield the findings of a case. Those about a head begin with its location."""
        head = case.head if self.needs_head else None
        if self.needs_head and head is None:
            return
        for finding in self.function(case, head) if head else self.function(case):
            changes = {} if finding.code else {"code": self.code}
            if head and head.location not in finding.message:
                changes["message"] = f"{head.location}: {finding.message}"
            yield finding.model_copy(update=changes)

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


_RULES: dict[str, Rule] = {}


def rule(
    code: str, *, about: About, vllm_notices: Notices, guards: str = "", fix: str = ""
) -> Callable[[Check], Rule]:
    """Make a rule of a function; its findings get the code. What it guards against is the first
    sentence of the function, unless ``guards`` says it."""

    def register(function: Check) -> Rule:
        needs_head = "head" in inspect.signature(function).parameters
        first, _, _ = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
        text = guards or " ".join(first.split()).replace("``", "`")
        _RULES[code] = Rule(
            code=code,
            about=about,
            vllm_notices=vllm_notices,
            guards=text,
            function=function,
            needs_head=needs_head,
            fix=fix,
        )
        return _RULES[code]

    return register


error = functools.partial(findings.error, "")
"""A finding of a rule that prevents any change: where, message, fix."""

warning = functools.partial(findings.warning, "")
"""A finding of a rule to read before anything is created."""

note = functools.partial(findings.note, "")
"""A finding of a rule for information."""


def list_rules() -> tuple[Rule, ...]:
    """All rules, in the order of their codes. Each file in ``rules`` has those of a subject."""
    _load(tuple(rules.__path__))
    return tuple(_RULES[code] for code in sorted(_RULES))


@cache
def _load(folders: tuple[str, ...]) -> None:
    """Import the files of rules; once, since planning reads no disk."""
    for module in pkgutil.iter_modules(folders):
        import_module(f"{rules.__name__}.{module.name}")


def check(
    case: Case, *, about: About | None = None, only: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """The findings of the rules, errors first, causes before their consequences.

    ``about`` and ``only`` select rules by subject and by code. Raises CheckpointError for a
    config.json with invalid numbers.
    """
    by_rule = {
        rule.code: tuple(rule.check(case))
        for rule in list_rules()
        if about in (None, rule.about) and (only is None or rule.code in only)
    }
    # A rule that looked at the case replaces the catalogue's own text on a problem.
    reported = {f.code for code, reports in by_rule.items() if code != _KNOWN for f in reports}
    distinct = dict.fromkeys(
        finding
        for code, findings in by_rule.items()
        for finding in findings
        if code != _KNOWN or finding.code not in reported
    )
    return tuple(sorted(distinct, key=lambda f: (findings.severity(f), f.code not in _CAUSES)))
