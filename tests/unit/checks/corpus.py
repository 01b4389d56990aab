"""The corpus: broken cases, each with the code that must be found, and no other error.

    name, a function that makes it, the code, and the level if it is not an error

A rule without an entry here fails ``test_every_rule_is_in_the_corpus``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peagle.checks import Case
from peagle.findings import Level


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
