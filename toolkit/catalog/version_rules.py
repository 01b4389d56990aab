"""What is true of some vLLM versions only, from ``version_rules.yaml``.

The entries are data; when one matters, the rule of its code under ``toolkit/checks/rules`` knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolkit.catalog import versions
from toolkit.catalog.rules import Broken
from toolkit.catalog.tables import VersionRule, VersionRuleTable


def holding(table: VersionRuleTable, code: str, vllm: str) -> tuple[VersionRule, ...]:
    """The entries of this code that hold on this version, in the order of the file."""
    return tuple(
        rule
        for rule in table.rules
        if rule.code == code and (rule.vllm is None or versions.in_range(vllm, rule.vllm))
    )


def broken_in_version_rules(table: VersionRuleTable, _path: Path) -> Iterator[Broken]:
    """What is wrong with the table: an entry that stands twice, a range that holds nothing."""
    seen: set[tuple[object, ...]] = set()
    for number, rule in enumerate(table.rules):
        here = ("rules", number)
        key = (rule.code, rule.vllm, rule.value, rule.names)
        if key in seen:
            yield here, f"{rule.code} stands twice with the same versions", "keep one of the two"
        seen.add(key)
        if rule.vllm is not None and _empty(rule.vllm):
            fix = "let the lower end lie below the upper one"
            yield (*here, "vllm"), f"no version lies in {rule.vllm}", fix


def _empty(versions_in: str) -> bool:
    """Whether no version can lie in the range: none of its ends and none just beside them does."""
    ends = [part.lstrip("<>=") for part in versions_in.split(",")]
    beside = [versions.parse(end) for end in ends]
    near = {
        (major, minor, max(0, patch + step)) for major, minor, patch in beside for step in (0, 1)
    }
    lowest = (0, 0, 0)
    candidates = {lowest, *near}
    return not any(
        versions.in_range(".".join(map(str, candidate)), versions_in) for candidate in candidates
    )
