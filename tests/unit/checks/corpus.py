"""The corpus: broken cases, and for each the code that must find it, and no other error.

    name, how it is made, the code, and its level where that is not an error

A rule without a line here fails ``test_every_rule_is_in_the_corpus``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peagle.checks import Case
from peagle.findings import Level


@dataclass(frozen=True)
class Broken:
    """One broken case, and all that tests want to know of it.

    ``told`` is the code of its finding, where a rule's findings have others. ``left``: why the
    container starts vLLM with it all the same; ``not_shown``: why the engine on this machine's CPU
    can show nothing of the rule. A rule from before these may say so in ``left_to_vllm`` and
    ``tests/engine/expected.py``.
    """

    name: str
    make: Callable[[Path], Case]
    code: str
    level: Level = "error"
    told: str | None = None
    left: str | None = None
    not_shown: str | None = None

    @property
    def expected(self) -> str:
        """The code that its finding must have."""
        return self.told or self.code
