"""A value that an argument of vLLM does not take: none of its choices, or no number.

vLLM's parser refuses it at start, when the instance already costs money.
"""

from collections import defaultdict

from peagle.case import Case
from peagle.catalog.tables import VersionRule
from peagle.checks.registry import Findings, Rule
from peagle.errors import nearest

RULE = Rule("engine-choice", about="version", vllm_notices="at start")

_CHOICES = "choices"
_NUMBERS: dict[str, tuple[type, ...]] = {"whole number": (int,), "number": (int, float)}
"""Value of an entry that lists arguments with such a value; that of ``_CHOICES`` lists
``argument=value``."""


def check(case: Case) -> Findings:
    for entry in RULE.entries(case):
        if entry.value == _CHOICES:
            yield from _choices(case, entry)
            continue
        kinds = _NUMBERS[str(entry.value)]
        for name, value in sorted(case.settings.items()):
            # A switch's value is the matter of ``engine-value``.
            if name in entry.names and not isinstance(value, (bool, *kinds)):
                yield RULE.of_entry(entry, "vllm", f"--{name} {value}")


def _choices(case: Case, entry: VersionRule) -> Findings:
    known: dict[str, list[str]] = defaultdict(list)
    for name, _, choice in (one.partition("=") for one in entry.names):
        known[name].append(choice)
    for name, value in sorted(case.settings.items()):
        if name in known and not isinstance(value, bool) and str(value) not in known[name]:
            fix = nearest(str(value), known[name]) or f"use one of {', '.join(known[name])}"
            yield RULE.of_entry(entry, "vllm", f"--{name} {value}", fix)
