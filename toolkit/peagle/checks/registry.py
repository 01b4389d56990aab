"""Finds the rules and runs them."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Literal, get_args

from peagle.case import Case
from peagle.checks import rules
from peagle.findings import Finding

About = Literal["head", "target", "load", "version", "hardware"]
Notices = Literal["at start", "on a request", "never"]

_KNOWN = "known-problem"
"""The rule whose findings have codes of their own, from the catalogue."""

_CAUSES = frozenset(
    {"head-not-a-drafter", "target-differs", "hidden-size-mismatch", "vocabulary-mismatch"}
)
"""Of findings of one level these come first: others may follow from them."""

_SEVERITY = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True)
class Rule:
    """One rule: ``guards`` is the first sentence of its file, ``about`` what it looks at,
    ``vllm_notices`` whether and when vLLM itself refuses what the rule refuses."""

    code: str
    about: About
    vllm_notices: Notices
    guards: str
    check: Callable[[Case], Iterator[Finding]]


@cache
def rules_found() -> tuple[Rule, ...]:
    """All rules, in the order of their codes."""
    modules = (import_module(f"{rules.__name__}.{info.name}") for info in _files())
    return tuple(sorted((_rule(module) for module in modules), key=lambda rule: rule.code))


def check(
    case: Case, *, about: About | None = None, only: Collection[str] | None = None
) -> tuple[Finding, ...]:
    """The findings of the rules, errors first, causes before their consequences.

    ``about`` and ``only`` select rules by subject and by code. Raises CheckpointError for a
    config.json with invalid numbers.
    """
    selected = [
        rule
        for rule in rules_found()
        if about in (None, rule.about) and (only is None or rule.code in only)
    ]
    by_rule = {rule.code: tuple(rule.check(case)) for rule in selected}
    # A rule that looked at the case replaces the catalogue's own text on a problem.
    reported = {
        finding.code for code, found in by_rule.items() if code != _KNOWN for finding in found
    }
    found = dict.fromkeys(
        finding
        for code, findings in by_rule.items()
        for finding in findings
        if code != _KNOWN or finding.code not in reported
    )
    return tuple(sorted(found, key=lambda f: (_SEVERITY[f.level], f.code not in _CAUSES)))


def _files() -> list[pkgutil.ModuleInfo]:
    return sorted(pkgutil.iter_modules(rules.__path__), key=lambda info: info.name)


def _rule(module: ModuleType) -> Rule:
    assert module.ABOUT in get_args(About), module.__name__
    assert module.VLLM_NOTICES in get_args(Notices), module.__name__
    guards, _, _ = (module.__doc__ or "").strip().partition("\n\n")
    return Rule(
        code=module.CODE,
        about=module.ABOUT,
        vllm_notices=module.VLLM_NOTICES,
        guards=" ".join(guards.split()),
        check=module.check,
    )
