"""The corpus: broken cases, each with the code that must be found, and no other error.

Rows are made by what the case begins with: ``tiny_pair`` (the tiny pair's files), ``speculators``
(its head as the speculators library writes it), ``real`` (real geometry) and ``listed`` (the
catalogue alone): name, the code, with the level if it is no error, and the arguments of the maker.
A rule without an entry here fails ``test_every_rule_is_in_the_corpus``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from peagle.checks import Case
from peagle.findings import Level
from tests.unit.checks import cases


@dataclass(frozen=True)
class Broken:
    """One broken case, and what tests expect of it.

    ``finding_code`` is the code of its finding, if it is not the rule's. ``not_shown``: why the
    engine on this machine's CPU cannot show the problem; older rules have these reasons in
    ``tests/engine/expected.py``.
    """

    name: str
    make: Callable[[Path], Case]
    code: str
    level: Level = "error"
    finding_code: str | None = None
    not_shown: str | None = None

    @property
    def expected(self) -> str:
        """The code that its finding must have."""
        return self.finding_code or self.code


def _maker(of: Callable[..., Case]) -> Callable[..., Broken]:
    def make(
        name: str,
        code: str,
        *arguments: Any,
        not_shown: str | None = None,
        finding_code: str | None = None,
        **more: Any,
    ) -> Broken:
        rule, _, level = code.partition(": ")
        return Broken(
            name,
            lambda folder: of(folder, *arguments, **more),
            rule,
            cast(Level, level or "error"),
            finding_code,
            not_shown,
        )

    return make


tiny_pair, speculators = _maker(cases.tiny_case), _maker(cases.speculators_case)
real = _maker(cases.geometry_case)
listed = _maker(lambda _, pair, **more: cases.catalog_case(pair, **more))
